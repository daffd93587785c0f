/** What a call ends with where it has no answer. */

import type { ErrorOut, JobOut } from "./schema.js";

const TYPE_PREFIX = "urn:polyrank:problem:";

/** A call has no answer; every error of the client is one. */
export class CallFailed extends Error {
  override name = "CallFailed";
}

/** The server could not be reached, time was over, or the connection broke; `maybeDone`: a change may have been made. */
export class NoAnswer extends CallFailed {
  override name = "NoAnswer";

  constructor(
    message: string,
    readonly maybeDone: boolean,
    cause: unknown,
  ) {
    super(maybeDone ? `${message}; the change may have been made` : message, { cause });
  }
}

/** Something answered, but not as a polyrank server does. */
export class NotAnAnswer extends CallFailed {
  override name = "NotAnAnswer";
}

/** The server answered with an error (RFC 9457). */
export class Refused extends CallFailed {
  override name = "Refused";
  /** The end of the problem's `type`, such as "invalid-input"; "" where the answer names none. */
  readonly kind: string;
  readonly title: string;
  readonly detail: string;
  /** Under which the server's log has it. */
  readonly requestId: string;
  /** With status 422, each thing that is wrong. */
  readonly findings: ErrorOut[];
  /** With the kind "job-conflict", the path of the job that runs. */
  readonly job: string | undefined;

  /**
   * @param status of HTTP
   * @param body of the answer
   * @param retryAfter seconds after which to come back; undefined: the server did not say
   */
  constructor(
    readonly status: number,
    body: unknown,
    readonly retryAfter?: number,
  ) {
    const told = object(body);
    const error = object(told.error); // as OpenAI's routes answer
    const detail = text(told.detail) || text(error.message) || `status ${status}`;
    const requestId = text(told.request_id);
    super(`${detail} (status ${status}, request ${requestId || "without a name"})`);
    this.kind = (text(told.type) || text(error.code)).replace(TYPE_PREFIX, "");
    this.title = text(told.title);
    this.detail = detail;
    this.requestId = requestId;
    this.findings = (Array.isArray(told.errors) ? told.errors : []).filter((each) => text(object(each).what));
    this.job = text(told.job) || undefined;
  }
}

/** A job failed or was cancelled. */
export class JobEnded extends CallFailed {
  override name = "JobEnded";

  constructor(readonly job: JobOut) {
    super(`job ${job.id} ${job.state}: ${job.error ?? "no reason was given"}`);
  }
}

// A proxy may have answered, in any form.
function object(value: unknown): Record<string, unknown> {
  return Object(value) as Record<string, unknown>;
}

function text(value: unknown): string {
  return typeof value === "string" ? value : "";
}
