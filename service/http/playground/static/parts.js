// Small parts that several views are made of.

import { h } from "preact";
import { useEffect, useId, useRef, useState } from "preact/hooks";
import htm from "htm";

export const html = htm.bind(h);

export const fixed = (value, digits = 3) => value.toFixed(digits).replace("-", "−");
export const signed = (value, digits = 3) => (value > 0 ? "+" : "") + fixed(value, digits);
export const whole = (value) => value.toLocaleString("en");
export const modelName = ({ name }) => name.split("/").pop(); // of a checkpoint's path, the folder
export const plural = (count, one, many = `${one}s`) => `${whole(count)} ${count === 1 ? one : many}`;

/** A labelled control; `hint` explains it, `error` is what is wrong with it. `as` draws the control. */
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

/** A notice: `kind` is info, warning or error. */
export function Notice({ kind = "info", title, children, action, does }) {
  return html`<div class=${`notice ${kind}`} role=${kind === "error" ? "alert" : "status"}>
    <p><strong>${title}</strong> ${children}</p>
    ${action && html`<button type="button" onClick=${does}>${action}</button>`}
  </div>`;
}

/** What a call that failed means, and what to do. */
export function Failure({ of, again, wantsKey }) {
  if (of.status === 401) {
    return html`<${Notice} kind="warning" title="A key is needed." action="Enter a key" does=${wantsKey}>
      ${of.message}.<//>`;
  }
  if (of.status === 403) {
    return html`<${Notice} kind="warning" title="This key may not do that." action="Use another key" does=${wantsKey}>
      ${of.message}.<//>`;
  }
  const when = of.retryAfter ? ` Try again in ${of.retryAfter} s.` : "";
  const lines = of.errors?.length ? of.errors.map(({ where, what }) => (where ? `${where}: ${what}` : what)).join("; ") : of.message;
  return html`<${Notice} kind="error" title=${`${of.title}.`} action=${again && "Try again"} does=${again}>
    ${lines}${when}${of.requestId && html` <span class="quiet">request <code>${of.requestId}</code></span>`}<//>`;
}

/** A chip: a short fact; `kind` says whether it is good, a warning, or neither. */
export const Chip = ({ kind = "plain", title, children }) =>
  html`<li class=${`chip ${kind}`} title=${title}>${children}</li>`;

/** A bar from 0 to 1; the number stands beside it. */
export const Bar = ({ share, kind }) =>
  html`<span class="bar" aria-hidden="true"><span class=${kind} style=${{ width: `${100 * share}%` }} /></span>`;

/** A modal dialog that is open while it is drawn; Escape and the close button call `close`. */
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
      <button type="button" class="quiet" aria-label="Close" onClick=${close}>✕</button></header>
    ${children}
  </dialog>`;
}

/** Asks before something is done that others would notice. */
export function Confirm({ title, children, action, does, close }) {
  return html`<${Dialog} title=${title} close=${close}>
    <div class="body">${children}</div>
    <footer><button type="button" onClick=${close}>Cancel</button>
      <button type="button" class="primary" onClick=${() => { close(); does(); }}>${action}</button></footer>
  <//>`;
}

/** What stands where nothing is yet. */
export const Empty = ({ title, children }) =>
  html`<div class="empty"><h3>${title}</h3>${children}</div>`;

/** Lines that stand for what is being fetched. */
export const Loading = ({ what, rows = 4 }) =>
  html`<div class="waiting" role="status"><p class="unseen">${what}</p>
    ${Array.from({ length: rows }, () => html`<span class="line" aria-hidden="true" />`)}</div>`;

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

/** What a call returned: `{value, problem, busy, load}`. What nobody answered is asked again when somebody does. */
export function useCall(ask, phase) {
  const [held, hold] = useState({ value: null, problem: null, busy: true });
  const waits = useRef(true);
  const load = async () => {
    hold((now) => ({ ...now, busy: true }));
    try {
      const value = await ask();
      waits.current = false;
      hold({ value, problem: null, busy: false });
    } catch (problem) {
      waits.current = problem.status === undefined;
      hold((now) => ({ value: now.value, problem: waits.current ? null : problem, busy: waits.current }));
    }
  };
  useEffect(() => {
    if (phase === "ready" && waits.current) load();
  }, [phase]);
  return { ...held, load };
}
