// The view "Candidates": those of the generation that is served; browsed, added, edited, removed.

import { useState } from "preact/hooks";
import { call } from "./api.js";
import { Confirm, Dialog, Empty, Failure, Field, html, Loading, Notice, plural, Scroll, readJson, useCall } from "./parts.js";

const PAGE = 50;
// Where a text is searched for, the pages that one call fetches, and so many calls until "Show more" is pressed.
const LOOKED_AT = 1000;
const MOST_CALLS = 10;

export function Candidates({ id, shown, connection, keys, wantsKey }) {
	const [search, setSearch] = useState({ id: "", filter: "", text: "" });
	const [filterError, setFilterError] = useState("");
	const [wanted, want] = useState({ id: "", filter: "", text: "" });
	const [more, setMore] = useState([]); // pages after the first
	const [edited, edit] = useState(null); // a candidate; {} for a new one
	const [removed, remove] = useState(null);
	const [done, tell] = useState("");
	const [failed, fail] = useState(null);
	const phase = shown ? connection.phase : "";

	const first = useCall(async () => {
		setMore([]);
		if (wanted.id) {
			try {
				const found = await call("GET", `index/candidates/${encodeURIComponent(wanted.id)}`);
				return { candidates: [found], next: null };
			} catch (problem) {
				if (problem.kind === "candidate-not-found") return { candidates: [], next: null };
				throw problem;
			}
		}
		return pageOf(wanted);
	}, phase, wanted, keys, connection.generation);

	const find = (event) => {
		event.preventDefault();
		const { error } = readJson(search.filter);
		setFilterError(error ?? "");
		fail(null);
		tell("");
		if (!error) want({ id: search.id.trim(), filter: search.filter.trim(), text: search.text.trim() });
	};
	const next = (more.at(-1) ?? first.value)?.next;
	const [fetches, fetching] = useState(false);
	const furtherPage = async () => {
		fetching(true);
		try {
			const found = await pageOf(wanted, next);
			setMore((before) => [...before, found]);
		} catch (problem) {
			if (problem.kind === "list-outdated") first.load(); // another generation took over
			else fail(problem);
		}
		fetching(false);
	};
	const removeNow = async ({ id: name }) => {
		fail(null);
		try {
			const { revision } = await call("POST", "index/candidates/delete", { ids: [name] });
			tell(`Removed ${name}: revision ${revision}.`);
			first.load();
		} catch (problem) {
			fail(problem);
		}
	};
	const saved = (name, revision) => {
		edit(null);
		tell(`Saved ${name}: revision ${revision}; it can be found now.`);
		first.load();
	};
	const pages = first.value ? [first.value, ...more] : [];
	const rows = pages.flatMap(({ candidates }) => candidates);
	const looked = wanted.text && !wanted.id ? pages.reduce((sum, each) => sum + (each.looked ?? 0), 0) : null;
	const problem = first.problem;
	const wrong = filterError || problem?.at("query.filter");

	return html`<header class="title"><h1 id=${id} tabindex="-1">Candidates</h1>
			<button type="button" class="primary" onClick=${() => edit({})}>Add a reply</button></header>
		<form class="search panel" onSubmit=${find}>
			<${Field} label="Id" as=${(at) => html`<input ...${at} value=${search.id} spellcheck="false"
				onInput=${(event) => setSearch({ ...search, id: event.target.value })} />`} />
			<${Field} label="Contains" as=${(at) => html`<input ...${at} value=${search.text} dir="auto"
				onInput=${(event) => setSearch({ ...search, text: event.target.value })} />`} />
			<${Field} label="Filter" class="wide" error=${wrong} as=${(at) => html`<input ...${at} class="code" value=${search.filter}
				placeholder='{"language": "en"}' spellcheck="false" onInput=${(event) => setSearch({ ...search, filter: event.target.value })} />`} />
			<button>Show</button>
		</form>
		${done && html`<${Notice} title=${done} />`}
		${failed && !problem && html`<${Failure} of=${failed} wantsKey=${wantsKey} />`}
		${problem && !wrong && html`<${Failure} of=${problem} again=${first.load} wantsKey=${wantsKey} />`}
		${!first.value && first.busy && html`<${Loading} what="Fetching candidates" rows=${6} />`}
		${!problem && first.value && rows.length === 0 && !next && html`<${Empty} title="Nothing found">
			<p>${wanted.id ? "No candidate has this id." : wanted.text && wanted.filter ? "No candidate that matches this filter has this text."
				: wanted.text ? "No candidate has this text." : wanted.filter ? ["No candidate matches this filter.", ...(first.value.notes ?? [])].join(" ") : "This pool is empty."}</p><//>`}
		${!problem && rows.length > 0 && html`<${Scroll} name="Table of candidates"><table class="stacks">
			<caption class="unseen">Candidates of the generation that is served</caption>
			<thead><tr><th>Id</th><th>Text</th><th>Metadata</th><th><span class="unseen">Change</span></th></tr></thead>
			<tbody>${rows.map((row) => html`<tr key=${row.id}>
				<th scope="row"><code>${row.id}</code></th>
				<td class="text" dir="auto"><${Marked} text=${row.text} sought=${wanted.id ? "" : wanted.text} /></td>
				<td><code class="metadata">${JSON.stringify(row.metadata)}</code></td>
				<td class="does"><button type="button" aria-label=${`Edit ${row.id}`} onClick=${() => edit(row)}>Edit</button>
					<button type="button" aria-label=${`Remove ${row.id}`} onClick=${() => remove(row)}>Remove</button></td>
			</tr>`)}</tbody></table><//>`}
		<p class="more" role="status">${!problem && first.value && (rows.length > 0 || next) && `${plural(rows.length, "candidate")} shown${
				next && looked !== null ? ` of ${plural(looked, "candidate")} looked at` : ""}`}
			${next && html` <button type="button" disabled=${fetches} onClick=${furtherPage}>${
				fetches ? "Looking …" : looked === null ? "Show more" : "Look further"}</button>`}</p>
		${edited && html`<${Editor} of=${edited} saved=${saved} close=${() => edit(null)} wantsKey=${wantsKey} />`}
		${removed && html`<${Confirm} title=${`Remove ${removed.id}?`} action="Remove" does=${() => removeNow(removed)} close=${() => remove(null)}>
			<p class="text" dir="auto">${removed.text}</p><//>`}`;
}

/** A page of candidates: `{candidates, next, notes}`. With a text, those that contain it among the next ones, whatever
	the case of letters, and how many were `looked` at. */
async function pageOf({ filter, text }, after) {
	if (!text) return call("GET", pathOf(filter, after, PAGE));
	const [candidates, sought] = [[], folded(text)];
	let looked = 0;
	let next = after;
	for (let calls = 0; calls < MOST_CALLS && candidates.length < PAGE; calls++) {
		const found = await call("GET", pathOf(filter, next, LOOKED_AT));
		candidates.push(...found.candidates.filter((each) => folded(each.text).includes(sought)));
		looked += found.candidates.length;
		next = found.next;
		if (!next) break;
	}
	return { candidates, next, looked };
}

const folded = (text) => text.normalize("NFC").toLowerCase();

/** A text, with the place marked where it contains what was sought. */
function Marked({ text, sought }) {
	const at = sought ? text.toLowerCase().indexOf(sought.toLowerCase()) : -1;
	if (at < 0) return text;
	return html`${text.slice(0, at)}<mark>${text.slice(at, at + sought.length)}</mark>${text.slice(at + sought.length)}`;
}

function pathOf(filter, after, limit) {
	const query = new URLSearchParams({ limit });
	if (filter) query.set("filter", filter);
	if (after) query.set("after", after);
	return `index/candidates?${query}`;
}

function Editor({ of, saved, close, wantsKey }) {
	const isNew = of.id === undefined;
	const [written, write] = useState({
		id: of.id ?? "",
		text: of.text ?? "",
		metadata: isNew ? "" : JSON.stringify(of.metadata, null, 1),
	});
	const [state, become] = useState({ busy: false, problem: null, metadataError: "" });
	const set = (name) => (event) => write({ ...written, [name]: event.target.value });
	const save = async (event) => {
		event.preventDefault();
		const { value, error } = readJson(written.metadata);
		if (error) return become({ busy: false, problem: null, metadataError: error });
		become({ busy: true, problem: null, metadataError: "" });
		const sent = { text: written.text, metadata: value ?? {}, ...(written.id.trim() && { id: written.id.trim() }) };
		try {
			const { revision } = await call("PUT", "index/candidates", [sent]);
			saved(sent.id ?? "the reply", revision);
		} catch (problem) {
			become({ busy: false, problem, metadataError: "" });
		}
	};
	const at = (name) => state.problem?.at?.(`0.${name}`) || state.problem?.at?.(`candidates.0.${name}`);
	const wrong = { id: at("id"), text: at("text"), metadata: state.metadataError || at("metadata") };
	return html`<${Dialog} title=${isNew ? "Add a reply" : `Edit ${of.id}`} close=${close}>
		<form onSubmit=${save}>
			<div class="body">
				${isNew && html`<${Field} label="Id" error=${wrong.id} hint="Left empty, it is made from the text. A known one is replaced."
					as=${(given) => html`<input ...${given} value=${written.id} spellcheck="false" onInput=${set("id")} />`} />`}
				<${Field} label="Text" error=${wrong.text}
					as=${(given) => html`<textarea ...${given} rows="4" dir="auto" value=${written.text} onInput=${set("text")} />`} />
				<${Field} label="Metadata" hint="A JSON object." error=${wrong.metadata}
					as=${(given) => html`<textarea ...${given} class="code" rows="4" spellcheck="false" value=${written.metadata} onInput=${set("metadata")} />`} />
				${state.problem && !Object.values(wrong).some(Boolean) && html`<${Failure} of=${state.problem} wantsKey=${wantsKey} />`}
			</div>
			<footer><button type="button" onClick=${close}>Cancel</button>
				<button class="primary" disabled=${state.busy}>${state.busy ? "Saving …" : "Save"}</button></footer>
		</form>
	<//>`;
}
