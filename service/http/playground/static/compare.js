// The replies of two generations side by side: the one that is served and the one on trial.

import { fixed, html, modelName, Running, signed } from "./parts.js";
import { Decision, Facts, Timings } from "./replies.js";

export function Compared({ live, trial, busy, does }) {
	const rows = Math.max(live.results.length, trial.results.length);
	const placeIn = ({ results }, id) => results.findIndex((each) => each.id === id);
	const lines = live.results.map(({ id }, from) => [from, placeIn(trial, id)]).filter(([, to]) => to >= 0);
	// Scores of two models have nothing in common, but a reranker's are of one.
	const isOneModel = live.model.fingerprint === trial.model.fingerprint;
	const areAlike = (one, other) => ("cross" in one.scores ? "cross" in other.scores : isOneModel && !("cross" in other.scores));
	return html`${busy && html`<${Running} what=${does} />`}<div class=${busy ? "compare fading" : "compare"} aria-busy=${busy ? "true" : "false"}>
		<${Side} name="Live" of=${live} change=${({ id }) => placeIn(trial, id) < 0 && "gone"} />
		<svg aria-hidden="true" viewBox=${`0 0 10 ${rows}`} preserveAspectRatio="none">${lines.map(([from, to]) =>
			html`<line class=${to < from ? "up" : to > from ? "down" : "same"} x1="0" y1=${from + 0.5} x2="10" y2=${to + 0.5} />`)}</svg>
		<${Side} name="Trial" of=${trial} change=${(each) => {
			const before = live.results[placeIn(live, each.id)];
			if (!before) return "new";
			const moved = before.rank - each.rank;
			const by = areAlike(before, each) ? `, ${signed(each.score - before.score)}` : "";
			return `${moved > 0 ? `▲ ${moved}` : moved < 0 ? `▼ ${-moved}` : "same rank"}${by}`;
		}} />
	</div>`;
}

const Side = ({ name, of, change }) => html`<section aria-label=${name}>
	<header><h2>${name}: ${modelName(of.model)} · ${of.model.architecture}</h2><${Facts} of=${of} />
		<${Decision} of=${of} /></header>
	<ol>${of.results.map((each) => html`<li key=${each.id} title=${each.text}>
		<p class="rank">${each.rank}</p><p class="text" dir="auto">${each.text}</p>
		<p class="number"><b>${fixed(each.score)}</b><span class="quiet">${change(each)}</span></p></li>`)}</ol>
	<${Timings} of=${of.timings_ms} />
</section>`;
