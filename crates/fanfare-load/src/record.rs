//! What became of one invocation.

use fanfare_types::Reason;
use serde::Deserialize;

use crate::names::Names;
use crate::server_timing;
use crate::wire::Answer;

/// How an invocation ended.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, PartialOrd, Ord)]
pub enum Outcome {
    /// It was not sent: the run was interrupted.
    #[default]
    NotSent,
    /// The function answered, and not with an error.
    Ok,
    /// The function answered with an error, or failed.
    FunctionError,
    /// The function had not the memory that was asked for.
    MemoryError,
    /// The platform refused it, with a reason.
    Refused,
    /// There was no answer in time.
    Timeout,
    /// The connection could not be made.
    ConnectError,
    /// The connection ended before the answer did.
    Closed,
    /// The answer is no HTTP, or too large.
    BadAnswer,
    /// It was under way when the run was interrupted.
    Interrupted,
}

impl Outcome {
    /// All of them.
    pub const ALL: [Outcome; 10] = [
        Outcome::NotSent,
        Outcome::Ok,
        Outcome::FunctionError,
        Outcome::MemoryError,
        Outcome::Refused,
        Outcome::Timeout,
        Outcome::ConnectError,
        Outcome::Closed,
        Outcome::BadAnswer,
        Outcome::Interrupted,
    ];

    /// Its stable name.
    #[must_use]
    pub fn name(self) -> &'static str {
        match self {
            Outcome::NotSent => "not-sent",
            Outcome::Ok => "ok",
            Outcome::FunctionError => "function-error",
            Outcome::MemoryError => "memory-error",
            Outcome::Refused => "refused",
            Outcome::Timeout => "timeout",
            Outcome::ConnectError => "connect-error",
            Outcome::Closed => "closed",
            Outcome::BadAnswer => "bad-answer",
            Outcome::Interrupted => "interrupted",
        }
    }

    /// Whether it is a failure of what is called: neither an answer, nor this program's own doing.
    #[must_use]
    pub fn is_failure(self) -> bool {
        !matches!(self, Outcome::Ok | Outcome::NotSent | Outcome::Interrupted)
    }
}

/// One invocation, with times in microseconds from the run's beginning.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Record {
    /// How it ended.
    pub outcome: Outcome,
    /// The answer's status; 0 without one.
    pub status: u16,
    /// The platform's reason, where it gave one.
    pub reason: Option<Reason>,
    /// Just before it was sent; the connection is made after it, where it needs a new one.
    pub sent_us: u64,
    /// When the first of the answer was there; 0 without one.
    pub first_byte_us: u64,
    /// When all of the answer was there, or it had failed.
    pub done_us: u64,
    /// Whether it waited for a new sandbox.
    pub cold: bool,
    /// How long it waited for a slot, by the platform's word.
    pub queue_us: Option<u32>,
    /// How long it executed: by the function's word, or else by the platform's.
    pub execution_us: Option<u32>,
    /// The sandbox, by its number in [`Run::sandboxes`](crate::Run::sandboxes), where the function told it.
    pub sandbox: Option<u32>,
}

/// What the function `trace` answers; fields that are not needed are left out.
#[derive(Deserialize)]
#[serde(rename_all = "PascalCase")]
struct TraceAnswer {
    machine_name: String,
    /// Microseconds.
    execution_time: u64,
}

/// How the function `trace` begins to say that there was not enough memory.
const NO_MEMORY: &[u8] = b"FAILURE - mem_alloc";
/// Begins the answers that may be one of `trace`'s.
const DOCUMENT: u8 = b'{';

impl Record {
    /// Takes from an answer what it tells.
    pub(crate) fn take(&mut self, answer: &Answer<'_>, names: &mut Names) {
        self.status = answer.status;
        self.reason = answer.header("x-fanfare-reason").and_then(reason);
        for (name, millis) in server_timing::entries(answer.header("server-timing").unwrap_or_default()) {
            match name {
                "queue" => self.queue_us = micros(millis),
                "execute" => self.execution_us = micros(millis),
                "create" => self.cold = true,
                _ => {}
            }
        }
        if answer.body.first() == Some(&DOCUMENT)
            && let Ok(trace) = serde_json::from_slice::<TraceAnswer>(answer.body)
        {
            self.execution_us = u32::try_from(trace.execution_time).ok();
            self.sandbox = names.number(&trace.machine_name);
        }
        self.outcome = match (self.reason, self.status) {
            (Some(reason), _) if is_functions(reason) => Outcome::FunctionError,
            (Some(_), _) => Outcome::Refused,
            (None, 400..) => Outcome::FunctionError,
            (None, _) if answer.body.starts_with(NO_MEMORY) => Outcome::MemoryError,
            (None, _) => Outcome::Ok,
        };
    }
}

fn reason(code: &str) -> Option<Reason> {
    Reason::ALL.iter().copied().find(|reason| reason.code() == code)
}

/// Whether a reason is the function's fault.
fn is_functions(reason: Reason) -> bool {
    matches!(
        reason,
        Reason::HandlerError
            | Reason::ProcessLimit
            | Reason::NoSpace
            | Reason::SandboxExited
            | Reason::OutOfMemory
            | Reason::ConnectionClosed
            | Reason::BadResponse
            | Reason::StartFailed
            | Reason::HandlerNotFound
            | Reason::DependenciesFailed
            | Reason::SecretMissing
    )
}

fn micros(millis: f64) -> Option<u32> {
    (0.0..=f64::from(u32::MAX)).contains(&(millis * 1e3)).then_some((millis * 1e3) as u32)
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::wire;

    fn of(status: u16, fields: &str, body: &str) -> Record {
        let text = format!("HTTP/1.1 {status} X\r\n{fields}content-length: {}\r\n\r\n{body}", body.len());
        let frame = wire::parse(text.as_bytes()).unwrap().unwrap();
        let mut record = Record::default();
        record.take(&Answer::new(frame, text.as_bytes()), &mut Names::default());
        record
    }

    #[test]
    fn answers_say_how_it_went() {
        let timing = "server-timing: queue;dur=2.5;desc=cold, create;dur=1, execute;dur=7.25\r\n";
        let trace =
            of(200, timing, r#"{"Status":"OK","Function":"f","MachineName":"s7","ExecutionTime":7100}"#);
        assert_eq!((trace.outcome, trace.cold, trace.queue_us), (Outcome::Ok, true, Some(2_500)));
        assert_eq!((trace.execution_us, trace.sandbox), (Some(7_100), Some(0)));
        let other = of(200, "server-timing: queue;dur=0.1;desc=warm, execute;dur=7.25\r\n", "{}");
        assert_eq!((other.outcome, other.cold, other.execution_us), (Outcome::Ok, false, Some(7_250)));
        assert_eq!(of(200, "", "FAILURE - mem_alloc - f\n").outcome, Outcome::MemoryError);
        assert_eq!(of(404, "", "").outcome, Outcome::FunctionError);
        let raised = of(502, "x-fanfare-reason: handler-error\r\n", "");
        assert_eq!((raised.outcome, raised.reason), (Outcome::FunctionError, Some(Reason::HandlerError)));
        let refused = of(504, "x-fanfare-reason: queue-timeout\r\n", "");
        assert_eq!((refused.outcome, refused.reason), (Outcome::Refused, Some(Reason::QueueTimeout)));
    }
}
