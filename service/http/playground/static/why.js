// Why a reply has its score: what each token of the conversation, each code, each token of the reply and each word adds.

import { useEffect, useState } from "preact/hooks";
import { call } from "./api.js";
import { Bar, Failure, fixed, html, Loading, Notice, Running, Scroll, signed } from "./parts.js";

const MOST = 10; // replies that one call explains
const TERMS = 6;
const ATTENDED = 2; // tokens that a code attends to, named
const MOST_TRIES = 20; // of an explanation that the time was too short for
const WHO = { user: "User", assistant: "Assistant" };

const sum = (values) => values.reduce((total, value) => total + value, 0);
const digitsFor = (scale) => (scale >= 0.1 ? 2 : scale >= 0.01 ? 3 : 4);
const most = (values) => Math.max(0, ...values.map(Math.abs)) || 1;
const isMark = ({ word }) => word === null; // such as [CLS]: it stands for no word
const ofWords = (values, tokens) => values.filter((_, at) => !isMark(tokens[at]));

/** What `POST /explain` answers; the live generation, where the one is gone that ranked. The first explanation reads the
	model's network, which may take longer than a request may: what is read stays, so it is asked for again. `wait` is
	called where that happens. */
async function explained(body, wait, signal) {
	for (let tries = 1; ; tries++) {
		try {
			return await call("POST", "explain", body, signal);
		} catch (problem) {
			if (problem.kind === "generation-mismatch") return explained({ ...body, generation: "live" }, wait, signal);
			if (problem.kind !== "deadline-exceeded" || tries === MOST_TRIES || signal?.aborted) throw problem;
			wait();
		}
	}
}

/** The replies that are explained together, so that each can be compared with the others. */
function together(results, id) {
	const first = results.slice(0, MOST);
	return first.some((each) => each.id === id) ? first : [...first.slice(0, MOST - 1), results.find((each) => each.id === id)];
}

export function Why({ id, answer, body, wantsKey }) {
	const [against, compare] = useState("mean");
	const [seen, see] = useState({});
	const [tries, again] = useState(0);
	const [focus, look] = useState(null); // {code}, {token}, or null: the whole score
	const [pairs, setPairs] = useState(null);
	const [loads, setLoads] = useState(false);
	const beside = together(answer.results, id);
	const { context, persona } = body;
	const said = { context, ...(persona && { persona }), generation: answer.generation };

	useEffect(() => {
		const stop = new AbortController();
		const candidates = beside.map((each) => ({ id: each.id }));
		see((before) => ({ found: before.found, busy: true }));
		setLoads(false);
		explained({ ...said, candidates, against, codes: 8 }, () => setLoads(true), stop.signal).then(
			(found) => (found.missing_ids.includes(against) ? compare("mean") : see({ found })),
			(problem) => stop.signal.aborted || see({ problem }),
		);
		return () => stop.abort();
	}, [answer, against, tries]);

	const focusToken = async (token) => {
		if (focus?.token === token) return look(null);
		try {
			if (!pairs) setPairs((await explained({ ...said, candidates: [{ id }], codes: 0, pairs: true }, () => setLoads(true))).candidates[0].pairs);
			look({ token });
		} catch (problem) {
			see({ problem });
		}
	};

	if (seen.problem) return html`<div class="why"><${Failure} of=${seen.problem} again=${() => again(tries + 1)} wantsKey=${wantsKey} /></div>`;
	if (!seen.found) {
		return html`<div class="why"><${Running} what=${loads ? "The first explanation reads the model, which takes a while" : "Explaining"} />
			<${Loading} rows=${2} /></div>`;
	}
	const found = seen.found.candidates.find((each) => each.id === id);
	if (!found) return html`<div class="why"><${Notice} title="This reply is not there any more.">It was removed since.<//></div>`;
	const code = found.codes?.find((each) => each.code === focus?.code);
	const values = code ? code.tokens : focus?.token !== undefined ? pairs.map((row) => row[focus.token]) : found.relative ?? found.tokens;
	const { cross } = answer.results.find((each) => each.id === id).scores;
	const hasMarks = [...seen.found.context.tokens, ...found.reply.tokens].some(isMark);
	const told = [found.tokens && `tokens ${fixed(sum(found.tokens))}`, found.words && `words ${signed(found.words.value)}`].filter(Boolean);
	const what = code ? `What code ${code.code} adds` : focus?.token !== undefined
		? `What adds with “${found.reply.tokens[focus.token].text}”` : "What speaks for this reply, and what against it";
	return html`<div class=${seen.busy ? "why fading" : "why"} aria-busy=${seen.busy ? "true" : "false"}>
		${seen.found.generation !== answer.generation && html`<${Notice} kind="warning" title="Another generation answers now.">
			What follows is by that one; rank anew to see its replies.<//>`}
		${seen.found.unexplained.map(({ part, why }) => html`<${Notice} title=${`Not told: ${part.replace("_", " ")}.`}>${why}<//>`)}
		${values && html`<header><h3>${what}</h3>
			${focus ? html`<button onClick=${() => look(null)}>Whole score</button>`
				: beside.length > 1 && html`<label>beside <select value=${against} onChange=${(event) => compare(event.target.value)}>
					<option value="mean">the mean of these</option>
					${beside.filter((each) => each.id !== id).map((each) => html`<option value=${each.id}>rank ${each.rank}</option>`)}</select></label>`}</header>
			<${Strip} tokens=${seen.found.context.tokens} values=${values} context=${context} />`}
		${found.reply_tokens && html`<h3>What each token of the reply adds</h3>
			<ol class="strip">${found.reply.tokens.map((token, at) => html`<${Token} of=${token} value=${found.reply_tokens[at]}
				most=${most(ofWords(found.reply_tokens, found.reply.tokens))} pressed=${focus?.token === at} press=${() => focusToken(at)} />`)}</ol>`}
		${found.codes && html`<${Codes} of=${found} tokens=${seen.found.context.tokens} focus=${focus?.code} look=${(one) => look(focus?.code === one ? null : { code: one })} />`}
		${found.words && html`<${Words} of=${found.words} />`}
		<${LeftOut} id=${id} said=${said} reranked=${cross !== undefined} wantsKey=${wantsKey}
			occluded=${seen.found.context.tokens.length > 0 && seen.found.unexplained.some(({ part }) => part !== "reply_tokens")} />
		<p class="hint">${told.length > 0 && `Of the score ${fixed(found.score)}, ${fixed(found.explained)} is told: ${told.join(", ")}. `}
			${cross !== undefined && `The order is by the reranker's own score, ${fixed(cross)}. `}
			${values && `A score has no zero, so the first picture shows what differs from other replies.
			Each token has read its neighbours. ${hasMarks ? "Marks such as [CLS] and [SEP] stand for no word: a model gathers in them what it read of the whole text, so their numbers have no colour." : ""}`}</p>
	</div>`;
}

/** What a score loses without parts of the conversation, one at a time: for scores that are no sums. */
function LeftOut({ id, said, reranked, occluded, wantsKey }) {
	const [seen, see] = useState({});
	const leaveOut = async (by) => {
		see({ busy: true, by });
		const ask = by === "tokens" ? { occlusion: true } : { cross: by };
		try {
			const { context, candidates: [{ occlusion, cross }] } = await explained({ ...said, candidates: [{ id }], codes: 0, ...ask }, () => see({ busy: true, by, loads: true }));
			const textOf = ({ turn, persona, start, end }) => // in characters, of which some are two for JavaScript
				[...(persona === null ? said.context[turn].text : said.persona[persona])].slice(start, end).join("");
			const parts = cross ? cross.units.map((unit) => ({ ...unit, text: textOf(unit) })) : context.tokens;
			const drops = cross ? cross.units.map(({ drop }) => drop) : occlusion;
			see({ by, parts: parts.filter((_, at) => drops[at] !== null), drops: drops.filter((drop) => drop !== null) });
		} catch (problem) {
			see({ problem });
		}
	};
	const ways = [...(occluded ? ["tokens"] : []), ...(reranked ? ["turns", "words"] : [])];
	if (!ways.length) return null;
	return html`<header><h3>${`What the ${reranked && seen.by !== "tokens" ? "reranker's score" : "score"} loses without …`}</h3>
			<p class="does">${ways.map((by) => html`<button disabled=${seen.busy} aria-pressed=${seen.by === by ? "true" : "false"}
				onClick=${() => leaveOut(by)}>each of the ${by}</button> `)}</p></header>
		${seen.busy && html`<${Running} what=${seen.loads ? "The model is read for the first explanation" : `Leaving out each of the ${seen.by}`} />`}
		${seen.problem && html`<${Failure} of=${seen.problem} wantsKey=${wantsKey} />`}
		${seen.drops && html`<${Strip} tokens=${seen.parts} values=${seen.drops} context=${said.context} />`}`;
}

/** The conversation's tokens, turn by turn, with a number beneath each. */
function Strip({ tokens, values, context }) {
	const rows = new Map();
	tokens.forEach((token, at) => {
		const name = token.persona !== null ? `Persona ${token.persona + 1}` : token.turn === null ? "Marks"
			: `${token.turn + 1} ${WHO[context[token.turn].role]}`;
		rows.set(name, [...(rows.get(name) ?? []), [token, values[at]]]);
	});
	const marks = rows.get("Marks");
	if (marks) rows.delete("Marks"), rows.set("Marks", marks); // the last row
	const scale = most(ofWords(values, tokens));
	return html`<dl class="strips">${[...rows].map(([name, row]) => html`<div><dt>${name}</dt><dd><ol class="strip">${row.map(
		([token, value]) => html`<${Token} of=${token} value=${value} most=${scale} />`)}</ol></dd></div>`)}</dl>`;
}

function Token({ of, value, most: scale, press, pressed }) {
	const inside = html`<span dir="auto">${of.text}</span><b>${signed(value, digitsFor(scale))}</b>`;
	const look = isMark(of) ? { class: "mark" } : { class: value < 0 ? "against" : "for", style: { "--share": Math.abs(value) / scale } };
	return html`<li>${press
		? html`<button ...${look} aria-pressed=${pressed ? "true" : "false"} onClick=${press}>${inside}</button>`
		: html`<span ...${look}>${inside}</span>`}</li>`;
}

function Codes({ of: { codes, others, effective_codes: took }, tokens, focus, look }) {
	const heaviest = Math.max(...codes.map(({ weight }) => weight));
	const attended = ({ attention }) => attention.map((share, at) => [share, tokens[at].text]).sort(([one], [other]) => other - one)
		.slice(0, ATTENDED);
	return html`<${Scroll} name="Codes"><table class="codes">
		<caption>Codes: ${fixed(took, 1)} of ${codes.length + others.count} took part</caption>
		<thead><tr><th>Code</th><th>Weight</th><th>Product</th><th>Adds</th>
			<th>Without it</th><th>Attends to</th></tr></thead>
		<tbody>${codes.map((each) => html`<tr key=${each.code}>
			<th scope="row"><button aria-label=${`Code ${each.code}`} aria-pressed=${each.code === focus ? "true" : "false"}
				onClick=${() => look(each.code)}>${each.code}</button></th>
			<td><${Bar} kind="vector" share=${each.weight / heaviest} />${fixed(each.weight)}</td><td>${fixed(each.score)}</td>
			<td>${signed(each.contribution)}</td><td>${each.without === null ? "–" : fixed(each.without)}</td>
			<td><span class="cells" aria-hidden="true">${each.attention.map((share, at) =>
				html`<i title=${`${tokens[at].text} ${fixed(share, 2)}`} style=${{ opacity: share / Math.max(...each.attention) }} />`)}</span>
				<span class="attended">${attended(each).map(([share, text], at) => html`${at > 0 ? ", " : ""}<bdi>${text}</bdi> ${fixed(share, 2)}`)}</span></td></tr>`)}
			${others.count > 0 && html`<tr><th scope="row">${others.count} others</th><td>${fixed(others.weight)}</td><td></td>
				<td>${signed(others.contribution)}</td><td></td><td></td></tr>`}</tbody>
		<tfoot><tr><th scope="row">All</th><td>${fixed(sum(codes.map(({ weight }) => weight)) + others.weight)}</td><td></td>
			<td>${signed(sum(codes.map(({ contribution }) => contribution)) + others.contribution)}</td><td></td><td></td></tr></tfoot>
	</table><//>
	<p class="hint">A cell beneath “Attends to” is a token of the conversation, in order: the darker, the more of it the code takes.
		The two that it takes most of are named, with their shares.</p>`;
}

function Words({ of }) {
	const rest = of.terms.slice(TERMS);
	const terms = [...of.terms.slice(0, TERMS), ...(rest.length ? [{ feature: `${rest.length} others`, value: sum(rest.map(({ value }) => value)) }] : [])];
	return html`<h3>What words add: ${signed(of.value)}</h3>
		<ul class="chips">${terms.map(({ feature, word, value }) =>
			html`<li class="chip">${word && html`<bdi>${word}</bdi> `}${feature} ${signed(value)}</li>`)}</ul>`;
}
