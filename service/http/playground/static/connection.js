// Whether the server answers and what it serves. It is asked seldom while all is well, and less and less often while
// nobody answers.

import { useEffect, useState } from "preact/hooks";
import { call, listen, Unreachable } from "./api.js";

const CALM_MS = 15_000;
const STARTING_MS = 2_000;
const FIRST_MS = 500;
const MOST_MS = 15_000;

// phase: connecting, ready, starting (it answers, but is not ready), offline; tries: calls that nobody answered
let state = { phase: "connecting", tries: 0, generation: null, info: null, refusal: null };
let timer = 0;
let asking = null;
const watchers = new Set();

function become(change) {
	state = { ...state, ...change };
	for (const watch of watchers) watch(state);
}

/** Ask now, and return the phase; `afresh`: what is served and by which models, too. */
export function look(afresh = false) {
	clearTimeout(timer);
	if (afresh) become({ info: null, refusal: null });
	asking ??= ask().finally(() => {
		asking = null;
		clearTimeout(timer);
		if (!document.hidden) timer = setTimeout(look, wait());
	});
	return asking;
}

/** Returns the phase that it found. */
async function ask() {
	try {
		const { generation } = await call("GET", "readyz");
		const changed = generation !== state.generation;
		become({ phase: "ready", tries: 0, generation });
		if (changed || !state.info) await askInfo();
	} catch (error) {
		if (error instanceof Unreachable) become({ phase: "offline", tries: state.tries + 1 });
		else become({ phase: "starting", tries: 0 });
	}
	return state.phase;
}

/** Whether a call failed because the server is not there or not ready: it is worth repeating when it is. */
export async function isEarly(problem) {
	if (problem instanceof Unreachable) return true;
	return problem.kind === "not-ready" && (await look()) !== "ready";
}

async function askInfo() {
	try {
		become({ info: await call("GET", "info"), refusal: null });
	} catch (error) {
		if (error instanceof Unreachable) throw error;
		become({ info: null, refusal: error });
	}
}

function wait() {
	if (state.phase === "ready") return CALM_MS;
	if (state.phase === "starting") return STARTING_MS;
	return Math.min(FIRST_MS * 2 ** state.tries, MOST_MS);
}

listen((isAnswered) => {
	if (asking === null && isAnswered !== (state.phase === "ready")) look(); // a call found out before the next look
});
document.addEventListener("visibilitychange", () => document.hidden || look());
addEventListener("online", () => look());

/** The state, in a component that is drawn again when it changes. */
export function useConnection() {
	const [seen, watch] = useState(state);
	useEffect(() => {
		watchers.add(watch);
		watch(state);
		return () => watchers.delete(watch);
	}, []);
	return seen;
}
