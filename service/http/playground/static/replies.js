// The ranked replies of an answer: what each part of a score adds, what the answer lacks, and where its time went.

import { useState } from "preact/hooks";
import { call, drawn } from "./api.js";
import { Bar, Chip, Empty, fixed, html, Loading, plural, Running } from "./parts.js";
import { Why } from "./why.js";

const PARTS = ["vector", "lexical", "cross"];
const STAGES = ["queue", "tokenize", "encode", "retrieve", "fetch", "score", "late", "rerank"];

// `does`: what is being done while `busy`. `feedback`: as of `useFeedback`.
export function Replies({ answer, body, busy, does, use, feedback, wantsKey }) {
	const [asked, askWhy] = useState(null); // the id of the reply that is explained
	const running = busy && html`<${Running} what=${does} />`;
	if (!answer && busy) return html`${running}<${Loading} rows=${5} />`;
	if (!answer) {
		return html`<${Empty} title="No replies yet">
			<p>They appear here, the best first, with what each part of their score adds and where the time went.</p><//>`;
	}
	const { results } = answer;
	const scales = scalesOf(results);
	return html`${running}<div class=${busy ? "results fading" : "results"} aria-busy=${busy ? "true" : "false"}>
		<p class="unseen" role="status">${!busy && plural(results.length, "reply", "replies")}</p>
		<${Facts} of=${answer} />
		<${Decision} of=${answer} />
		${results.length === 0
			? html`<${Empty} title="No reply fits"><p>${answer.notes?.join(" ") ?? "No candidate matches the filter."}</p><//>`
			: html`<h2 class="unseen">Replies</h2>
				<ol class="replies">${results.map((result) => html`<${Reply} key=${result.id} of=${result} scales=${scales} use=${() => use(result)}
					feedback=${feedback} ranking=${answer.ranking_id}
					why=${result.id === asked && html`<${Why} key=${answer.request_id} id=${result.id} answer=${answer} body=${body} wantsKey=${wantsKey} />`}
					askWhy=${() => askWhy(result.id === asked ? null : result.id)} />`)}</ol>
				<p class="hint">A bar is what a part adds beyond the lowest of these replies. ${scales.lexical
					? "vector and lexical have one scale, so equal lengths are equal amounts." : ""} Scores have no zero.</p>`}
		<${Timings} of=${answer.timings_ms} />
	</div>`;
}

/** Tells the server what became of a ranking: `{noted, say, problem, again}`. Both functions take `{ranking_id, id}` of a
	reply; one that somebody has written has no id. `noted` returns the last kind that the server has taken of it. */
export function useFeedback() {
	const [taken, take] = useState({});
	const [failed, fail] = useState(null);
	const nameOf = ({ ranking_id, id }) => `${ranking_id} ${id}`;
	const send = async (event) => {
		try {
			await call("POST", "feedback", { events: [event] });
			take((before) => ({ ...before, [nameOf(event)]: event.kind }));
			fail(null);
		} catch (problem) {
			fail({ problem, again: () => send(event) });
		}
	};
	return { noted: (of) => taken[nameOf(of)], say: (of, kind, text) => send({ ...of, kind, text, event_id: drawn() }), ...failed };
}

/** For each part that occurs, where its bars begin and what a full one stands for. */
function scalesOf(results) {
	const scales = {};
	for (const part of PARTS) {
		const values = results.map(({ scores }) => scores[part]).filter((value) => value !== undefined);
		if (values.length) scales[part] = { least: Math.min(...values), range: Math.max(...values) - Math.min(...values) };
	}
	const added = [scales.vector, scales.lexical].filter(Boolean);
	const widest = Math.max(...added.map(({ range }) => range)); // both add to one score
	for (const scale of added) scale.range = widest;
	return scales;
}

export function Facts({ of }) {
	const { turns, tokens, candidates } = of.truncated;
	const cut = [turns && plural(turns, "turn"), tokens && plural(tokens, "token"), candidates && plural(candidates, "candidate")];
	return html`<ul class="chips" aria-label="About this answer">
		${of.exact
			? html`<${Chip} kind="good">exact<//>`
			: html`<${Chip}>approximate<//>`}
		${of.degraded.map((word) => html`<${Chip} kind="warning">degraded: ${word.replaceAll("_", " ")}<//>`)}
		${cut.some(Boolean) && html`<${Chip} kind="warning">truncated: ${cut.filter(Boolean).join(", ")}<//>`}
		<${Chip}><code>${of.generation}</code><//>
		<${Chip}>revision ${of.revision}<//>
	</ul>`;
}

/** Whether the first reply is an answer, where that was asked. */
export function Decision({ of: { decision: of, results } }) {
	if (!of) return null;
	const told = results.length === 0 ? "there is no reply" : of.probability === null ? "how probable the first reply is, is not known"
		: `the first reply is right with probability ${fixed(of.probability)}`;
	return html`<p class=${`decision ${of.answer ? "good" : "bad"}`}><strong>${of.answer ? "Answers" : "Does not answer"}</strong>
		<span>${`${told}; ${of.threshold} was asked for`}</span></p>`;
}

export const JUDGED = { chosen: "Noted: used", edited: "Noted: edited", written: "Noted: written", up: "Noted: good", down: "Noted: bad" };

function Thumb({ of, rank, kind, feedback }) {
	const name = `${kind === "up" ? "Good" : "Bad"} reply, rank ${rank}`;
	return html`<button class="thumb" aria-label=${name} title=${name} aria-pressed=${feedback.noted(of) === kind ? "true" : "false"}
		onClick=${() => feedback.say(of, kind)}><svg viewBox="0 0 24 24" aria-hidden="true" class=${kind}>
			<path d="M3 11h4v10H3zM9 11l4-8c1.7 0 3 1.3 3 3l-.6 4H20c1.3 0 2.2 1.2 1.9 2.4l-1.6 6.5c-.3 1.2-1.4 2.1-2.7 2.1H9z" /></svg></button>`;
}

function Reply({ of, scales, feedback, ranking: ranking_id, use, why, askWhy }) {
	const judged = { ranking_id, id: of.id };
	const parts = PARTS.filter((part) => part in of.scores);
	const about = Object.entries(of.metadata);
	return html`<li class="reply">
		<p class="rank"><span class="unseen">Rank </span>${of.rank}</p>
		<div class="said">
			<p class="text" dir="auto" onClick=${() => getSelection().isCollapsed && askWhy()}>${of.text}</p>
			<div class="about"><code>${of.id}</code>${about.map(([name, value]) =>
				html`<span>${name}: <bdi>${typeof value === "string" ? value : JSON.stringify(value)}</bdi></span>`)}</div>
		</div>
		<div class="score"><dl>
			<div class="total"><dt>score</dt><dd>${fixed(of.score)}</dd></div>
			${parts.map((part) => html`<div><dt>${part}</dt>
				<dd><${Bar} kind=${part} share=${shareOf(of.scores[part], scales[part])} /><span>${fixed(of.scores[part])}</span></dd></div>`)}
		</dl>
			${ranking_id && html`<p class="does"><span class="quiet" role="status">${JUDGED[feedback.noted(judged)]}</span>
				${["up", "down"].map((kind) => html`<${Thumb} of=${judged} rank=${of.rank} kind=${kind} feedback=${feedback} />`)}</p>`}
			<p class="does"><button aria-label=${`Why rank ${of.rank}`} aria-expanded=${why ? "true" : "false"} onClick=${askWhy}>Why</button>
				<button aria-label=${`Use this reply, rank ${of.rank}`} onClick=${use}>Use this reply</button></p>
		</div>
		${why}
	</li>`;
}

const shareOf = (value, { least, range }) => (range > 0 ? (value - least) / range : 0);

export function Timings({ of }) {
	const spent = STAGES.filter((stage) => of[stage] >= 0.05);
	const sum = spent.reduce((total, stage) => total + of[stage], 0);
	const rest = Math.max(0, of.total - sum);
	const whole = sum + rest || 1;
	const pieces = [...spent.map((stage) => [stage, of[stage]]), ...(rest >= 0.05 ? [["other", rest]] : [])];
	return html`<div class="timings">
		<h2>${fixed(of.total, 1)} ms</h2>
		<div class="stack" aria-hidden="true">${pieces.map(([stage, ms]) =>
			html`<span class=${`stage-${stage}`} style=${{ width: `${(100 * ms) / whole}%` }} />`)}</div>
		<dl>${pieces.map(([stage, ms]) => html`<div><dt><span class=${`key stage-${stage}`} aria-hidden="true" />${stage}</dt>
			<dd>${fixed(ms, 1)}</dd></div>`)}</dl>
	</div>`;
}
