// The page: its head with the state of the server, its views, and the dialog for a key.

import { render } from "preact";
import { useEffect, useState } from "preact/hooks";
import { call, hasKey, isKept, POOL, ROOT, useKey } from "./api.js";
import { Candidates } from "./candidates.js";
import { look, useConnection } from "./connection.js";
import { Generations } from "./generations.js";
import { Dialog, Field, html, modelName, Notice, useCall } from "./parts.js";
import { Talk } from "./talk.js";

const VIEWS = { talk: ["Talk", Talk], candidates: ["Candidates", Candidates], index: ["Index", Generations] };
const HTTP_TEXT = /^[\x21-\x7e]+$/; // what a header can carry

const viewNamed = () => (location.hash.slice(1) in VIEWS ? location.hash.slice(1) : "talk");

function App() {
	const connection = useConnection();
	const [view, show] = useState(viewNamed());
	const [seen, see] = useState([viewNamed()]); // a view that was opened keeps what was typed into it
	const [asksKey, askKey] = useState(false);
	const [keys, countKeys] = useState(0); // a new key: views ask again

	useEffect(() => {
		const follow = () => {
			show(viewNamed());
			see((before) => [...new Set([...before, viewNamed()])]);
		};
		addEventListener("hashchange", follow);
		return () => removeEventListener("hashchange", follow);
	}, []);
	useEffect(() => {
		document.title = `${VIEWS[view][0]} · polyrank playground`;
	}, [view]);

	const take = (key, keep) => {
		useKey(key, keep);
		askKey(false);
		countKeys(keys + 1);
		look(true);
	};
	const toContent = (event) => {
		event.preventDefault(); // the part of the address behind # names the view
		document.querySelector("main section:not([hidden]) h1")?.focus();
	};
	return html`
		<header class="head">
			<a class="skip" href="#content" onClick=${toContent}>Skip to the content</a>
			<p class="brand"><a href="#talk">polyrank <span>playground</span></a></p>
			<nav aria-label="Views"><ul>${Object.entries(VIEWS).map(
				([name, [title]]) =>
					html`<li><a href="#${name}" aria-current=${name === view ? "page" : undefined}>${title}</a></li>`,
			)}</ul></nav>
			<div class="state">${POOL && html`<${PoolChoice} connection=${connection} keys=${keys} />`}<${ServerState} of=${connection} />
				<button type="button" onClick=${() => askKey(true)}>${hasKey() ? "Key in use" : "Key"}</button></div>
		</header>
		<${Interruption} of=${connection} />
		<main id="content">${seen.map((name) => {
			const View = VIEWS[name][1];
			return html`<section key=${name} hidden=${name !== view} aria-labelledby=${`${name}-title`}>
				<${View} id=${`${name}-title`} shown=${name === view} connection=${connection} keys=${keys}
					wantsKey=${() => askKey(true)} /></section>`;
		})}</main>
		<footer class="foot">${connection.info && html`<span>polyrank ${connection.info.version}</span>`}<a href="docs">API</a>
			<a href="playground/vendor/preact-LICENSE.txt">Licence of preact</a>
			<a href="playground/vendor/htm-LICENSE.txt">Licence of htm</a></footer>
		${asksKey && html`<${KeyDialog} take=${take} close=${() => askKey(false)} />`}`;
}

const PHASES = {
	connecting: ["wait", "connecting"],
	ready: ["good", "ready"],
	starting: ["wait", "not ready"],
	offline: ["bad", "no answer"],
};

function ServerState({ of }) {
	const [kind, word] = PHASES[of.phase];
	const model = of.info?.model;
	return html`<p class="server" role="status"><span class=${`dot ${kind}`} aria-hidden="true" />
		<span><span class="unseen">Server: </span>${word}</span>
		${model && html`<span class="quiet model" title=${`${model.name} ${model.fingerprint}`}>${modelName(model)} · ${model.architecture}</span>`}</p>`;
}

/** Leads to the pages of the other pools that the key is for. */
function PoolChoice({ connection, keys }) {
	const { value } = useCall(() => call("GET", "pools"), connection.phase, keys);
	const go = (event) => location.assign(`${ROOT}${event.target.value}/playground${location.hash}`);
	return value && html`<select aria-label="Pool" value=${POOL} onChange=${go}>
		${value.pools.map(({ name, path }) => html`<option key=${path} value=${path}>${name || "without a name"}</option>`)}</select>`;
}

/** Says why nothing works at the moment, and that the page goes on by itself. */
function Interruption({ of }) {
	if (of.phase === "offline") {
		return html`<${Notice} kind="error" title="The server does not answer." action="Ask now" does=${() => look()}>
			The page asks again by itself; nothing you wrote is lost.<//>`;
	}
	if (of.phase === "starting") {
		return html`<${Notice} kind="warning" title="The server is not ready yet.">
			It loads its models, or is about to stop. The page goes on by itself.<//>`;
	}
	return null;
}

function KeyDialog({ take, close }) {
	const [wrong, call] = useState("");
	const submit = (event) => {
		event.preventDefault();
		const { key, keep } = event.target.elements;
		const given = key.value.trim();
		if (!HTTP_TEXT.test(given)) call("a key has letters, digits and signs, without spaces");
		else take(given, keep.checked);
	};
	return html`<${Dialog} title="API key" close=${close}>
		<form onSubmit=${submit}>
			<div class="body">
				<p>A server with a keys file asks for one. <strong>rank</strong> is enough to talk;
					candidates and index need <strong>admin</strong>.</p>
				<${Field} label="Key" error=${wrong} hint="Sent in a header to this server alone, never in an address."
					as=${(given) => html`<input ...${given} name="key" type="password" autocomplete="off" spellcheck="false" required />`} />
				<label class="tick"><input type="checkbox" name="keep" defaultChecked=${isKept()} />
					Keep it until this tab is closed</label>
			</div>
			<footer>${hasKey() && html`<button type="button" onClick=${() => take("", false)}>Forget the key</button>`}
				<button class="primary">Use this key</button></footer>
		</form>
	<//>`;
}

document.getElementById("app").replaceChildren();
render(html`<${App} />`, document.getElementById("app"));
look();
