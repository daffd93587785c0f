// Small parts that several views are made of.

import { h } from "preact";
import { useEffect, useId, useRef, useState } from "preact/hooks";
import htm from "htm";
import { hasKey } from "./api.js";
import { isEarly } from "./connection.js";

export const html = htm.bind(h);

export const fixed = (value, digits = 3) => (Number(value.toFixed(digits)) || 0).toFixed(digits).replace("-", "−"); // no −0
export const signed = (value, digits = 3) => (Number(value.toFixed(digits)) > 0 ? "+" : "") + fixed(value, digits);
export const whole = (value) => value.toLocaleString("en");
export const modelName = ({ name }) => name.split("/").pop(); // of a checkpoint's path, the folder
export const plural = (count, one, many = `${one}s`) => `${whole(count)} ${count === 1 ? one : many}`;

/** A labelled control, which `as` draws. */
export function Field({ label, hint, error, as, class: name = "" }) {
	const id = useId();
	const described = [hint && `${id}-hint`, error && `${id}-error`].filter(Boolean).join(" ") || undefined;
	return html`<div class=${`field ${name}`}>
		<label for=${id}>${label}</label>
		${as({ id, "aria-describedby": described, "aria-invalid": error ? "true" : undefined })}
		${hint && html`<p class="hint" id=${`${id}-hint`}>${hint}</p>`}
		${error && html`<p class="wrong" id=${`${id}-error`} role="alert">${error}</p>`}
	</div>`;
}

// `kind`: info, warning, error
export function Notice({ kind = "info", title, children, action, does }) {
	return html`<div class=${`notice ${kind}`} role=${kind === "error" ? "alert" : "status"}>
		<p><strong>${title}</strong> ${children}</p>
		${action && html`<button type="button" onClick=${does}>${action}</button>`}
	</div>`;
}

/** What a call that failed means, and what to do. */
export function Failure({ of, again, wantsKey }) {
	if (of.status === 401) {
		return html`<${Notice} kind="warning" title=${hasKey() ? "The server does not know this key." : "A key is needed."}
			action=${hasKey() ? "Use another key" : "Enter a key"} does=${wantsKey} />`;
	}
	if (of.status === 403) return html`<${Notice} kind="warning" title="This key may not do that:" action="Use another key" does=${wantsKey}>${of.message}.<//>`;
	const when = of.retryAfter ? `; try again in ${of.retryAfter} s` : "";
	const lines = of.errors?.map(({ where, what }) => (where ? `${where}: ${what}` : what)).join("; ") || of.message;
	return html`<${Notice} kind="error" title=${`${of.title}.`} action=${again && "Try again"} does=${again}>
		${`${lines}${when}. `}${of.requestId && html`<span class="quiet">request <code>${of.requestId}</code></span>`}<//>`;
}

// A short fact; `kind`: plain, good, warning
export const Chip = ({ kind = "plain", children }) => html`<li class=${`chip ${kind}`}>${children}</li>`;

// From 0 to 1; the number stands beside it
export const Bar = ({ share, kind }) =>
	html`<span class="bar" aria-hidden="true"><span class=${kind} style=${{ width: `${100 * share}%` }} /></span>`;

/** A modal dialog; Escape and its button call `close`. */
export function Dialog({ title, close, children }) {
	const box = useRef(null);
	const id = useId();
	useEffect(() => {
		const before = document.activeElement;
		box.current.showModal();
		return () => before?.focus?.();
	}, []);
	const leave = (event) => {
		event.preventDefault();
		close();
	};
	return html`<dialog ref=${box} aria-labelledby=${id} onCancel=${leave}>
		<header><h2 id=${id}>${title}</h2>
			<button class="quiet" aria-label="Close" onClick=${close}>✕</button></header>
		${children}
	</dialog>`;
}

export function Confirm({ title, children, action, does, close }) {
	return html`<${Dialog} title=${title} close=${close}>
		<div class="body">${children}</div>
		<footer><button onClick=${close}>Cancel</button>
			<button class="primary" onClick=${() => { close(); does(); }}>${action}</button></footer>
	<//>`;
}

export const Empty = ({ title, children }) => html`<div class="empty"><h3>${title}</h3>${children}</div>`;

// Stands for what is being fetched
export const Loading = ({ what, rows = 4 }) =>
	html`<div class="waiting" role="status">${what && html`<p class="unseen">${what}</p>`}
		${Array.from({ length: rows }, () => html`<span class="line" aria-hidden="true" />`)}</div>`;

/** What is being done, and for how long; it is seen where that takes a while. */
export function Running({ what }) {
	const [seconds, count] = useState(0);
	useEffect(() => {
		const timer = setInterval(() => count((before) => before + 1), 1000);
		return () => clearInterval(timer);
	}, []);
	return html`<div class="running"><span role="status">${what} …</span>
		<span class="number quiet" aria-hidden="true">${seconds > 0 && `${seconds} s`}</span><progress aria-hidden="true" /></div>`;
}

/** Makes room for what is wide: it scrolls, also by keys. */
export const Scroll = ({ name, children }) =>
	html`<div class="scroll" tabindex="0" role="region" aria-label=${name}>${children}</div>`;

/** JSON as somebody writes it into a field: `{value}` or `{error}`; nothing written is `undefined`. */
export function readJson(text) {
	if (!text.trim()) return { value: undefined };
	try {
		return { value: JSON.parse(text) };
	} catch (error) {
		return { error: `this is not JSON yet: ${error.message}` };
	}
}

/** Call `tick` each `ms` while `when`, one call at a time. */
export function useTicks(tick, ms, when) {
	const latest = useRef(tick);
	latest.current = tick;
	useEffect(() => {
		if (!when) return undefined;
		let ended = false;
		let timer = 0;
		const next = async () => {
			await latest.current();
			if (!ended) timer = setTimeout(next, ms);
		};
		timer = setTimeout(next, ms);
		return () => {
			ended = true;
			clearTimeout(timer);
		};
	}, [ms, when]);
}

/** What a call returned: `{value, problem, busy, load}`. It is called again when one of `of` has changed, and, where
	nobody answered or the server was not ready, when it is. */
export function useCall(ask, phase, ...of) {
	const [held, hold] = useState({ value: null, problem: null, busy: true });
	const waits = useRef(true);
	const latest = useRef(0);
	const asked = useRef("");
	const load = async () => {
		const mine = ++latest.current;
		hold((now) => ({ ...now, busy: true }));
		try {
			const value = await ask();
			if (mine !== latest.current) return; // another call began since
			waits.current = false;
			hold({ value, problem: null, busy: false });
		} catch (problem) {
			const early = await isEarly(problem);
			if (mine !== latest.current) return;
			waits.current = early;
			hold((now) => ({ value: now.value, problem: waits.current ? null : problem, busy: waits.current }));
		}
	};
	useEffect(() => {
		const now = JSON.stringify(of);
		if (phase !== "ready" || (now === asked.current && !waits.current)) return;
		asked.current = now;
		load();
	}, [phase, ...of]);
	return { ...held, load };
}
