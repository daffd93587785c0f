// The view "Index": generations and what serves, jobs with their progress, switching and rebuilding.

import { useEffect, useState } from "preact/hooks";
import { call } from "./api.js";
import { look } from "./connection.js";
import { Confirm, Empty, Failure, Field, fixed, html, Loading, modelName, Notice, plural, Scroll, useCall, useTicks, whole } from "./parts.js";

const TICK_MS = 1000;
const RUNNING = new Set(["queued", "running"]);

export function Generations({ id, shown, connection, keys, wantsKey }) {
	const phase = shown ? connection.phase : "";
	const [asks, ask] = useState(null); // what is to be confirmed
	const [done, tell] = useState("");
	const [failed, fail] = useState(null);
	const held = useCall(async () => {
		const index = await call("GET", "index");
		return { index, jobs: (await call("GET", "index/jobs")).jobs };
	}, phase, keys, connection.generation);
	const running = held.value?.jobs.find(({ state }) => RUNNING.has(state));
	useTicks(held.load, TICK_MS, Boolean(running) && phase === "ready");
	useEffect(() => {
		if (!running) look(); // a job that has ended may have switched
	}, [running?.id]);

	const change = async (path, body, said, meanwhile = "") => {
		tell(meanwhile);
		fail(null);
		try {
			await call("POST", path, body);
			tell(said);
		} catch (problem) {
			tell("");
			fail(problem);
		}
		await held.load();
		look();
	};
	const { value, problem } = held;
	return html`<header class="title"><h1 id=${id} tabindex="-1">Index</h1></header>
		${done && html`<${Notice} title=${done} />`}
		${failed && !problem && html`<${Failure} of=${failed} wantsKey=${wantsKey} />`}
		${problem && html`<${Failure} of=${problem} again=${held.load} wantsKey=${wantsKey} />`}
		${!value && !problem && html`<${Loading} what="Fetching generations" rows=${6} />`}
		${value && !problem && html`
			${!value.index.writable && html`<${Notice} title="This server may not write to its store.">
				Builds and switches are made where the store can be written.<//>`}
			<${Active} of=${value.index.active} writable=${value.index.writable} compact=${() => change("index/compact", undefined, "Compaction started.")} />
			<${Others} of=${value.index} activate=${(generation) => ask({
				title: "Switch the generation?", action: "Activate", text: `${generation} will answer. Requests in progress end on the present one.`,
				does: () => change("index/activate", { generation }, `${generation} is active.`, `Loading ${generation} …`) })}
				attempt=${(generation) => change("index/trial", { generation }, `${generation} is on trial: Talk can compare it.`, `Loading ${generation} …`)}
				endTrial=${() => change("index/trial/end", undefined, "The trial has ended.")}
				rollback=${() => ask({ title: "Roll back?", action: "Roll back", text: `${value.index.previous}, which was active before, will answer.`,
				does: () => change("index/rollback", undefined, "Rolled back.") })} />
			<${Jobs} of=${value.jobs} cancel=${(job) => ask({ title: "Cancel the job?", action: "Cancel the job", text: "What it has built is removed.",
				does: () => change(`index/jobs/${job.id}/cancel`, undefined, "The job is being cancelled.") })} />
			${value.index.writable && html`<${Rebuild} of=${value.index} started=${() => { tell("The build has started."); fail(null); held.load(); }} isBusy=${Boolean(running)} wantsKey=${wantsKey} />`}`}
		${asks && html`<${Confirm} title=${asks.title} action=${asks.action} does=${asks.does} close=${() => ask(null)}><p>${asks.text}</p><//>`}`;
}

const day = (text) => (text ? text.slice(0, 19).replace("T", " ") : "–");
const Time = ({ of }) => html`<time dateTime=${of}>${day(of)}</time>`;
const recallOf = ({ recall }) =>
	recall.probes === "none" ? "1.000 (exact)" : `${fixed(recall["recall@10"])} of the 10 best, ${fixed(recall["recall@100"])} of the 100 best`;

function Active({ of, writable, compact }) {
	if (!of) return html`<${Empty} title="Nothing is served"><p>Build a generation, or activate one.</p><//>`;
	const facts = {
		"Candidates": whole(of.count),
		"Model": html`${modelName(of.model)} · ${of.model.architecture} · <code title=${of.model.fingerprint}>${of.model.fingerprint.slice(0, 12)}</code>`,
		"Vectors": `${of.dim} × ${of.dtype}${of.late ? `, second stage of ${of.late.dim}` : ""}`,
		"Index": of.index_factory ? `${of.index} (${of.index_factory})` : of.index,
		"Recall": recallOf(of),
		"Built": html`<${Time} of=${of.built_at} /> UTC by ${of.backend}, ${of.precision}`,
		"Updates": `revision ${of.revision}: ${whole(of.added)} added, ${whole(of.removed)} replaced or removed`,
	};
	return html`<section class="panel" aria-labelledby="active-title">
		<header><h2 id="active-title">Serving <code>${of.id}</code></h2>
			${writable && of.added + of.removed > 0 && html`<button type="button" onClick=${compact}>Compact</button>`}</header>
		<dl class="facts">${Object.entries(facts).map(([name, fact]) => html`<div><dt>${name}</dt><dd>${fact}</dd></div>`)}</dl>
	</section>`;
}

function Others({ of, activate, attempt, endTrial, rollback }) {
	const kept = of.trial ? [of.trial, ...of.others] : of.others;
	return html`<section class="panel" aria-labelledby="others-title">
		<header><h2 id="others-title">Other generations</h2>
			${of.writable && of.previous && html`<button type="button" onClick=${rollback}>Roll back</button>`}</header>
		${kept.length === 0 && html`<p class="quiet">None is kept.</p>`}
		${kept.length > 0 && html`<${Scroll} name="Table of other generations"><table class="stacks">
			<thead><tr><th>Generation</th><th>Candidates</th><th>Model</th><th>Index</th>
				<th>Built (UTC)</th><th><span class="unseen">Change</span></th></tr></thead>
			<tbody>${kept.map((each) => html`<tr key=${each.id}><th scope="row"><code>${each.id}</code>
				${each === of.trial && html` <span class="chip good">on trial, ${whole(Math.ceil(each.memory_bytes / 2 ** 20))} MiB${each.share > 0 && `, ${Math.round(each.share * 100)} % of conversations`}</span>`}</th>
				<td class="number" data-name="Candidates">${whole(each.count)}</td>
				<td data-name="Model">${modelName(each.model)} · ${each.model.architecture}</td><td data-name="Index">${each.index}</td>
				<td data-name="Built"><${Time} of=${each.built_at} /></td>
				<td class="does">${of.writable && html`${each === of.trial ? html`<button type="button" onClick=${endTrial}>End the trial</button>`
					: html`<button type="button" aria-label=${`Try ${each.id}`} onClick=${() => attempt(each.id)}>Try</button>`}
					<button type="button" aria-label=${`Activate ${each.id}`} onClick=${() => activate(each.id)}>Activate</button>`}</td></tr>`)}</tbody>
		</table><//>`}
		${of.refused.map(({ id, reason }) => html`<${Notice} key=${id} kind="warning" title=${`${id} is not served.`}>${reason}<//>`)}
	</section>`;
}

const KINDS = { succeeded: "good", failed: "bad", cancelled: "plain" };

function Jobs({ of, cancel }) {
	return html`<section class="panel" aria-labelledby="jobs-title"><header><h2 id="jobs-title">Jobs</h2></header>
		${of.length === 0 && html`<p class="quiet">None has run yet.</p>`}
		<ul class="jobs">${of.map((job) => html`<li key=${job.id}>
			<p><strong>${job.compacts ? "Compaction" : "Build"}</strong> <code>${job.id}</code>
				<span class=${`chip ${KINDS[job.state] ?? "plain"}`}>${job.state}</span>
				<span class="quiet"><${Time} of=${job.finished ?? job.started ?? job.created} /> UTC</span></p>
			${RUNNING.has(job.state) && html`<${Progress} of=${job} cancel=${() => cancel(job)} />`}
			${job.error && html`<p class="wrong">${job.error}</p>`}
			${job.generation && !job.error && html`<p class="quiet"><code>${job.generation}</code>${job.activate ? "" : "not to be activated"}</p>`}
		</li>`)}</ul></section>`;
}

function Progress({ of, cancel }) {
	const { done, total } = of.progress;
	const pace = [of.rate && `${whole(Math.round(of.rate))} a second`, of.eta !== null && `${Math.ceil(of.eta)} s left`].filter(Boolean).join(", ");
	const id = `progress-${of.id}`;
	return html`<div class="progress"><label for=${id}>${of.stage ?? "waiting"}</label>
		<progress id=${id} max=${total || 1} value=${total ? done : undefined} />
		<span class="number">${total ? `${whole(done)} of ${plural(total, "candidate")}` : whole(done)}${pace && html` <span class="quiet">${pace}</span>`}</span>
		<button type="button" onClick=${cancel}>Cancel</button></div>`;
}

function Rebuild({ of, started, isBusy, wantsKey }) {
	const [problem, fail] = useState(null);
	const submit = async (event) => {
		event.preventDefault();
		const { pool, model, activate } = event.target.elements;
		fail(null);
		try {
			await call("POST", "index", {
				pool: pool.value.trim(),
				...(model.value.trim() && { model: model.value.trim() }),
				activate: activate.checked,
			});
			started();
		} catch (found) {
			fail(found);
		}
	};
	const wrong = { pool: problem?.at?.("pool"), model: problem?.at?.("model") };
	return html`<section class="panel" aria-labelledby="rebuild-title"><header><h2 id="rebuild-title">Build a generation</h2></header>
		${!of.takes_pools && html`<p class="quiet">This server was started without <code>--pool-root</code>, the directory of the files
			that it may build from. <code>POST /index</code> takes candidates in the request all the same.</p>`}
		${of.takes_pools && html`<form class="rebuild" onSubmit=${submit}>
			<${Field} label="Pool" hint="A file below the server's pool_root." error=${wrong.pool}
				as=${(at) => html`<input ...${at} name="pool" spellcheck="false" placeholder="replies.jsonl" />`} />
			<${Field} label="Model" error=${wrong.model} hint=${of.takes_models ? "Below its model_root, or lexical. Empty: the one that is active."
				: "lexical, or empty: the one that is active. Others need --model-root."}
				as=${(at) => html`<input ...${at} name="model" spellcheck="false" />`} />
			<label class="tick"><input type="checkbox" name="activate" defaultChecked /> <span>Activate it when it is built</span></label>
			${problem && !wrong.pool && !wrong.model && html`<${Failure} of=${problem} wantsKey=${wantsKey} />`}
			<button class="primary" disabled=${isBusy}>${isBusy ? "A job is running" : "Start"}</button>
		</form>`}</section>`;
}
