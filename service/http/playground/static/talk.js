// The view "Talk": a conversation, turn by turn, and the replies that the server ranks for it.

import { useEffect, useRef, useState } from "preact/hooks";
import { call, drawn } from "./api.js";
import { Compared } from "./compare.js";
import { isEarly } from "./connection.js";
import { Failure, Field, html, modelName, Notice, readJson } from "./parts.js";
import { JUDGED, Replies, useFeedback } from "./replies.js";

const SAMPLE = [
	{ role: "user", text: "Hi, my parcel is late." },
	{ role: "assistant", text: "Sorry to hear that. Has the tracking moved?" },
	{ role: "user", text: "No, it has said the same for five days." },
];
const SPEAKERS = { user: "User", assistant: "Assistant" };
const NOTHING = { busy: false, answer: null, trial: null, body: null, problem: null, of: "" };
const other = (role) => (role === "user" ? "assistant" : "user");

/** The body of `POST /rank` for what is written; `{error}` where the filter is no JSON. */
function bodyOf({ turns, conversation, persona, filter, topK, answerIf, rerank, compare }) {
	const { value, error } = readJson(filter);
	if (error) return { error };
	const facts = persona.split("\n").map((line) => line.trim()).filter(Boolean);
	return {
		body: {
			context: turns.map(({ role, text }) => ({ role, text })),
			...(facts.length && { persona: facts }),
			...(value !== undefined && { filter: value }),
			top_k: Number(topK),
			...(answerIf && { answer_if: Number(answerIf) }),
			...(rerank && { rerank: true }),
			conversation,
			...(compare && { log: false }), // nothing of it can be judged
		},
	};
}

const stateOf = (body, { compare }) => JSON.stringify([body, compare]);

export function Talk({ id, connection, keys, wantsKey }) {
	const [turns, setTurns] = useState([]); // `of`: the ranking and the reply that the assistant took or wrote there
	const [conversation, name] = useState(drawn); // where rankings are recorded, this holds its turns together
	const [draft, setDraft] = useState({ role: "user", text: "" });
	const [options, setOptions] = useState({ persona: "", filter: "", topK: "10", answerIf: "", rerank: false, compare: false });
	const [asked, setAsked] = useState(NOTHING);
	const [filterError, setFilterError] = useState("");
	const pending = useRef(null); // what nobody has answered yet
	const aborting = useRef(null);
	const composer = useRef(null);
	const answers = useRef(null); // below the conversation where the screen is narrow
	const feedback = useFeedback();
	const { body } = bodyOf({ turns, conversation, ...options });
	const isCurrent = asked.answer !== null && !asked.busy && asked.of === stateOf(body, options);
	const isStale = asked.answer !== null && !asked.busy && !isCurrent;

	const ask = async (said, with_ = options) => {
		const { body, error } = bodyOf({ turns: said, conversation, ...with_ });
		setFilterError(error ?? "");
		if (error || !said.length) return;
		aborting.current?.abort();
		const mine = (aborting.current = new AbortController());
		pending.current = null;
		setAsked((before) => ({ ...before, busy: true, problem: null }));
		try {
			const [answer, trial] = await Promise.all([
				call("POST", "rank", body, mine.signal),
				with_.compare ? call("POST", "rank", { ...body, generation: "trial" }, mine.signal) : null,
			]);
			setAsked({ busy: false, answer, trial, body, problem: null, of: stateOf(body, with_) });
		} catch (problem) {
			const early = !mine.signal.aborted && (await isEarly(problem));
			if (mine.signal.aborted) return;
			if (early) pending.current = () => ask(said, with_);
			setAsked((before) => ({ ...before, busy: pending.current !== null, problem: pending.current ? null : problem }));
		}
	};
	useEffect(() => {
		if (connection.phase === "ready") pending.current?.();
	}, [connection.phase]);
	useEffect(() => {
		if (asked.problem?.status === 401 || asked.problem?.status === 403) ask(turns);
	}, [keys]);

	useEffect(() => {
		if (turns.length) composer.current.scrollIntoView({ block: "nearest" });
	}, [turns.length]);

	/** A turn of the assistant. Where it answers what the replies shown were ranked for, the server is told of it. */
	const answered = (text, kind, id) => {
		const ranking_id = isCurrent && asked.answer.ranking_id;
		if (!ranking_id) return { role: "assistant", text };
		const of = { ranking_id, id };
		feedback.say(of, kind, kind === "written" ? text : undefined);
		return { role: "assistant", text, of };
	};
	const say = () => {
		const { role, text } = draft;
		const said = text.trim() ? [...turns, role === "assistant" ? answered(text, "written") : { role, text }] : turns;
		setTurns(said);
		if (text.trim()) setDraft({ role: other(role), text: "" });
		ask(said);
	};
	const use = (reply) => {
		setTurns([...turns, answered(reply.text, "chosen", reply.id)]);
		setDraft({ role: "user", text: draft.text });
		composer.current?.focus();
	};
	/** Put turns in the place of one; what comes after it was ranked for something else. */
	const put = (at, ...some) => setTurns([...turns.slice(0, at), ...some, ...turns.slice(at + 1).map(({ role, text }) => ({ role, text }))]);
	const change = (at, text) => {
		const turn = turns[at];
		if (text === turn.text) return;
		if (turn.of) feedback.say(turn.of, turn.of.id === undefined ? "written" : "edited", text);
		put(at, { ...turn, text });
	};
	const restart = () => {
		aborting.current?.abort();
		pending.current = null;
		setTurns([]);
		name(drawn);
		setDraft({ role: "user", text: draft.text });
		setAsked(NOTHING);
		composer.current?.focus();
	};
	const problem = asked.problem;
	const wrong = Object.fromEntries(["filter", "top_k", "answer_if", "persona"].map((name) => [name, problem?.at?.(name)]));
	wrong.filter = filterError || wrong.filter;
	const isAtTurn = (where) => turns.some((_, place) => where === `context.${place}` || where.startsWith(`context.${place}.`));
	const isPlaced = problem?.status === 422 && problem.errors.length > 0
		&& problem.errors.every(({ where }) => wrong[where.split(".")[0]] || isAtTurn(where));

	useEffect(() => {
		const isToSee = problem ? !isPlaced : asked.of || asked.busy;
		if (matchMedia("(max-width:60rem)").matches && isToSee) answers.current.scrollIntoView();
	}, [asked.of, asked.busy, problem]);

	const does = options.rerank && connection.info?.reranker ? `Ranking, and reranking with ${modelName(connection.info.reranker)}` : "Ranking";

	return html`<h1 id=${id} tabindex="-1" class="unseen">Talk</h1>
		<div class="talk">
			<div class="conversation panel">
				<header><h2>Conversation</h2>
					${turns.length > 0 && html`<button type="button" onClick=${restart}>Start over</button>`}</header>
				${turns.length === 0 && html`<p class="quiet">Write what somebody says. The server ranks its pool for what is said
					next. <button type="button" class="link" onClick=${() => { setTurns(SAMPLE); ask(SAMPLE); }}>Try an example</button></p>`}
				<ol class="turns" aria-label="Turns">${turns.map(
					(turn, at) => html`<${Said} key=${at} turn=${turn} place=${at + 1} wrong=${problem?.at?.(`context.${at}`)}
						noted=${turn.of && feedback.noted(turn.of)} change=${(text) => change(at, text)} remove=${() => put(at)} />`,
				)}</ol>
				<form class="composer" onSubmit=${(event) => { event.preventDefault(); say(); }}>
					<fieldset class="speakers"><legend class="unseen">Who says it</legend>${Object.entries(SPEAKERS).map(
						([role, title]) => html`<label><input type="radio" name="speaker" value=${role} checked=${draft.role === role}
							onChange=${() => setDraft({ ...draft, role })} /><span>${title}</span></label>`,
					)}</fieldset>
					<${Field} label="What is said" hint="Enter sends, Shift+Enter begins a line."
						as=${(given) => html`<textarea ...${given} ref=${composer} rows="2" dir="auto" value=${draft.text}
							onInput=${(event) => setDraft({ ...draft, text: event.target.value })} onKeyDown=${sends(say)} />`} />
					<button class="primary" disabled=${!turns.length && !draft.text.trim()}>
						${draft.text.trim() || !turns.length ? "Send" : "Ask again"}</button>
				</form>
				<${Options} given=${options} change=${setOptions} wrong=${wrong} info=${connection.info} />
			</div>
			<div class="answer" ref=${answers}>
				${problem && !isPlaced && html`<${Failure} of=${problem} again=${() => ask(turns)} wantsKey=${wantsKey} />`}
				${feedback.problem && html`<${Failure} of=${feedback.problem} again=${feedback.again} wantsKey=${wantsKey} />`}
				${connection.refusal?.status === 401 && !problem && html`<${Failure} of=${connection.refusal} wantsKey=${wantsKey} />`}
				${isStale && html`<${Notice} title="Something was changed since." action="Rank anew" does=${() => ask(turns)}>
					These replies are for what was there before.<//>`}
				${asked.trial
					? html`<${Compared} live=${asked.answer} trial=${asked.trial} busy=${asked.busy} does=${does} />`
					: html`<${Replies} answer=${asked.answer} body=${asked.body} busy=${asked.busy} does=${does} use=${use} feedback=${feedback} wantsKey=${wantsKey} />`}
			</div>
		</div>`;
}

/** Enter sends; with Shift, or while a word is being composed, it does what it does elsewhere. */
const sends = (say) => (event) => {
	if (event.key !== "Enter" || event.shiftKey || event.isComposing) return;
	event.preventDefault();
	say();
};

function Said({ turn, place, noted, wrong, change, remove }) {
	const [edited, edit] = useState(null);
	const finish = () => {
		if (edited.trim()) change(edited);
		edit(null);
	};
	const name = `turn ${place}`;
	return html`<li class=${`turn ${turn.role}`}>
		<p class="who">${SPEAKERS[turn.role]} <span class="quiet" role="status">${["edited", "written"].includes(noted) && JUDGED[noted]}</span></p>
		${edited === null
			? html`<p class="text" dir="auto">${turn.text}</p>`
			: html`<textarea class="text" aria-label=${`Edit ${name}`} rows="3" dir="auto" value=${edited} ref=${(box) => box?.focus()}
					onInput=${(event) => edit(event.target.value)}
					onKeyDown=${(event) => (event.key === "Escape" ? edit(null) : sends(finish)(event))} />`}
		${wrong && html`<p class="wrong" role="alert">${wrong}</p>`}
		<p class="does">${edited === null
			? html`<button type="button" class="quiet" aria-label=${`Edit ${name}`} onClick=${() => edit(turn.text)}>Edit</button>
				<button type="button" class="quiet" aria-label=${`Remove ${name}`} onClick=${remove}>Remove</button>`
			: html`<button type="button" class="quiet" onClick=${finish}>Done</button>
				<button type="button" class="quiet" onClick=${() => edit(null)}>Cancel</button>`}</p>
	</li>`;
}

function Options({ given, change, wrong, info }) {
	const set = (name) => (event) => change({ ...given, [name]: event.target.value });
	const box = useRef(null);
	const isWrong = Object.values(wrong).some(Boolean);
	useEffect(() => {
		if (!isWrong) return;
		box.current.open = true; // and it stays open while the mistake is mended
		box.current.querySelector("[aria-invalid]").scrollIntoView({ block: "nearest" });
	}, [isWrong]);
	const reranker = info ? info.reranker : undefined;
	const placing = given.rerank ? reranker : info?.model; // whose scores place the first reply
	const isUncalibrated = placing?.relevance_prior === null;
	const intoSight = () => box.current.open && box.current.scrollIntoView({ block: "nearest" });
	return html`<details class="options" ref=${box} onToggle=${intoSight}>
		<summary>Persona, filter, replies, answering, reranking, comparing</summary>
		<${Field} label="Persona" hint="Facts about the replying side, one a line." error=${wrong.persona}
			as=${(at) => html`<textarea ...${at} rows="2" dir="auto" value=${given.persona} onInput=${set("persona")} />`} />
		<${Field} label="Filter" hint=${html`JSON on metadata, such as <code>{"language": "en"}</code>.`} error=${wrong.filter}
			as=${(at) => html`<textarea ...${at} class="code" rows="2" spellcheck="false" value=${given.filter} onInput=${set("filter")} />`} />
		<${Field} label="Replies" class="short" hint="top_k, 1 to 1000." error=${wrong.top_k}
			as=${(at) => html`<input ...${at} type="number" min="1" max="1000" value=${given.topK} onInput=${set("topK")} />`} />
		<${Field} label="Answer if" class="short" error=${wrong.answer_if}
			hint=${isUncalibrated ? `${modelName(placing)} is not calibrated: its scores say no probability.`
				: "Say whether the first reply is right with this probability, above 0 to 1."}
			as=${(at) => html`<input ...${at} type="number" min="0" max="1" step="any" placeholder="0.5" disabled=${isUncalibrated && !given.answerIf}
				value=${given.answerIf} onInput=${set("answerIf")} />`} />
		<label class="tick"><input type="checkbox" checked=${given.rerank} disabled=${reranker === null}
			onChange=${(event) => change({ ...given, rerank: event.target.checked })} />
			<span>Rerank with a Cross-encoder${reranker === null ? html` <span class="quiet">(this server has none)</span>` : ""}</span></label>
		<label class="tick"><input type="checkbox" checked=${given.compare}
			onChange=${(event) => change({ ...given, compare: event.target.checked })} />
			<span>Compare with the generation on trial <span class="quiet">(begins under Index)</span></span></label>
	</details>`;
}
