//! From what a user wrote to a specification that is right by construction.

use std::collections::BTreeSet;
use std::fmt::Display;
use std::time::Duration;

use fanfare_types::{
    Balance, CodeDigest, Contract, FunctionName, FunctionSpec, Resources, Sizing, Timeouts, limits,
};

use crate::given::given;
use crate::quantity::{show_bytes, show_duration};
use crate::{
    EnvDocument, FieldError, FunctionDocument, HandlerDocument, LimitsDocument, Quantity, TimeoutsDocument,
};

/// The runtimes that a function may name.
pub(crate) const RUNTIMES: [&str; 2] = ["process", "fake"];
/// Environment names that the platform sets itself.
pub(crate) const ENV_RESERVED: [&str; 3] = ["PORT", "LISTEN_FDS", "LISTEN_PID"];
/// Environment names with this beginning are the platform's.
pub(crate) const ENV_RESERVED_PREFIX: &str = "FANFARE_";

impl TryFrom<FunctionDocument> for FunctionSpec {
    type Error = FieldError;

    /// Checks every field and fills in the defaults.
    ///
    /// # Errors
    /// The first field that is wrong, with what is allowed and what was given.
    fn try_from(document: FunctionDocument) -> Result<Self, FieldError> {
        let name = FunctionName::new(&document.name).map_err(|e| {
            let error = FieldError::new("name", format!("{:?}", document.name), e.to_string());
            FieldError { message: format!("name {} {e}", error.value), ..error }
        })?;
        let contract = contract(document.handler)?;
        let runtime = runtime(document.runtime.as_deref(), &contract)?;
        let code = code(document.code.as_deref(), &contract)?;
        let scaling = document.scaling.to_scaling(document.concurrency.is_some())?;
        let concurrency = document.concurrency.unwrap_or(if document.scaling.is_knative() {
            limits::CONCURRENCY_MAX
        } else {
            1
        });
        let sizing = sizing(&document.limits, concurrency, document.handler_processes, &contract)?;
        let queue_limit = document.queue_limit.unwrap_or(limits::QUEUE_LIMIT_DEFAULT);
        Ok(FunctionSpec {
            name,
            runtime: runtime.into(),
            contract,
            code,
            given: given(document.secrets, &document.files, &document.env)?,
            env: env(document.env)?,
            sizing,
            timeouts: timeouts(&document.timeouts)?,
            scaling,
            queue_limit: within("queue_limit", queue_limit, 1, limits::QUEUE_LIMIT_MAX)?,
            balance: document.balance.map_or_else(Balance::default, Balance::from),
        })
    }
}

fn contract(handler: HandlerDocument) -> Result<Contract, FieldError> {
    match handler {
        HandlerDocument::Python { file, handler } => {
            Ok(Contract::Python { file: code_path(file)?, handler: handler_name(handler)? })
        }
        HandlerDocument::Node { file, handler } => {
            Ok(Contract::Node { file: code_path(file)?, handler: handler_name(handler)? })
        }
        HandlerDocument::Http { command, inherits_listener, protocol } => {
            check_command(&command)?;
            Ok(Contract::Http { command, inherits_listener, protocol: protocol.into() })
        }
        HandlerDocument::Fake {} => Ok(Contract::Fake),
    }
}

/// A path that stays within the code whatever directory that is unpacked to.
fn code_path(file: String) -> Result<String, FieldError> {
    let inside = !file.starts_with('/') && file.split('/').all(|part| !part.is_empty() && part != "..");
    if file.chars().count() > limits::HANDLER_LEN_MAX || file.contains('\0') || !inside {
        let limit =
            format!("a relative path without `..`, of at most {} characters", limits::HANDLER_LEN_MAX);
        return Err(FieldError::new("handler.file", format!("{file:?}"), limit));
    }
    Ok(file)
}

fn handler_name(handler: String) -> Result<String, FieldError> {
    // What beyond ASCII is a letter, each language says by itself.
    let first = |c: char| c.is_ascii_alphabetic() || matches!(c, '_' | '$') || !c.is_ascii();
    let part = |p: &str| p.starts_with(first) && p.chars().all(|c| first(c) || c.is_ascii_digit());
    if handler.chars().count() > limits::HANDLER_LEN_MAX || !handler.split('.').all(part) {
        let limit = format!("an identifier of at most {} characters", limits::HANDLER_LEN_MAX);
        return Err(FieldError::new("handler.handler", format!("{handler:?}"), limit));
    }
    Ok(handler)
}

fn check_command(command: &[String]) -> Result<(), FieldError> {
    let field = "handler.command";
    let count = command.len();
    if !(1..=limits::COMMAND_ARGS_MAX).contains(&count) {
        let limit = format!("1 to {} arguments", limits::COMMAND_ARGS_MAX);
        return Err(FieldError::new(field, format!("{count} arguments"), limit));
    }
    let bytes: usize = command.iter().map(String::len).sum();
    if bytes > limits::COMMAND_BYTES_MAX {
        let limit = format!("at most {} bytes", limits::COMMAND_BYTES_MAX);
        return Err(FieldError::new(field, format!("{bytes} bytes"), limit));
    }
    if command[0].is_empty() {
        return Err(FieldError::new(field, "\"\"", "a program first"));
    }
    match command.iter().find(|argument| argument.contains('\0')) {
        Some(bad) => Err(FieldError::new(field, format!("{bad:?}"), "arguments without NUL")),
        None => Ok(()),
    }
}

fn runtime(runtime: Option<&str>, contract: &Contract) -> Result<&'static str, FieldError> {
    let fits = if *contract == Contract::Fake { "fake" } else { "process" };
    match runtime {
        None => Ok(fits),
        Some(name) if name == fits => Ok(fits),
        Some(name) if RUNTIMES.contains(&name) => Err(FieldError::disagreeing(
            "runtime",
            format!("{name:?}"),
            format!("{fits:?} with this kind of handler"),
        )),
        Some(name) => Err(FieldError::new("runtime", format!("{name:?}"), RUNTIMES.join(", "))),
    }
}

fn code(code: Option<&str>, contract: &Contract) -> Result<Option<CodeDigest>, FieldError> {
    match (code, contract) {
        (None, Contract::Fake) => Ok(None),
        (None, _) => {
            let digest = "the SHA-256 of the uploaded code, 64 hexadecimal digits, with this kind of handler";
            Err(FieldError { disagrees: true, ..FieldError::missing("code", digest) })
        }
        (Some(digest), _) => {
            let parsed = digest.parse().map_err(|e| FieldError::new("code", format!("{digest:?}"), e))?;
            match contract {
                Contract::Fake => Err(FieldError::disagreeing("code", digest, "none with handler kind fake")),
                _ => Ok(Some(parsed)),
            }
        }
    }
}

fn sizing(
    document: &LimitsDocument,
    concurrency: u32,
    handler_processes: Option<u32>,
    contract: &Contract,
) -> Result<Sizing, FieldError> {
    let concurrency = within("concurrency", concurrency, 1, limits::CONCURRENCY_MAX)?;
    let processes = within("handler_processes", handler_processes.unwrap_or(1), 1, limits::CONCURRENCY_MAX)?;
    if !concurrency.is_multiple_of(processes) {
        let limit = format!("a divisor of concurrency {concurrency}");
        return Err(FieldError::disagreeing("handler_processes", processes, limit));
    }
    if processes > 1 && !matches!(contract, Contract::Python { .. } | Contract::Node { .. }) {
        return Err(FieldError::disagreeing("handler_processes", processes, "1 with this kind of handler"));
    }
    let (memory_request, memory_limit) = memory(document)?;
    let (cpu_request, cpu_limit) = cpu(document)?;
    let defaults = Sizing::default();
    let pids = document.pids.unwrap_or(defaults.pids_limit);
    // Its files are memory: it must be full before the memory is used up.
    let tmp_default = defaults.tmp_limit_bytes.min(memory_limit / 2);
    let (tmp_min, tmp_max) = (limits::TMP_LIMIT_MIN_BYTES, limits::TMP_LIMIT_MAX_BYTES);
    let tmp = bytes("limits.tmp", document.tmp.as_ref(), tmp_min, tmp_max)?.unwrap_or(tmp_default);
    Ok(Sizing {
        request: Resources::new(cpu_request, memory_request),
        limit: Resources::new(cpu_limit, memory_limit),
        pids_limit: within("limits.pids", pids, limits::PIDS_LIMIT_MIN, limits::PIDS_LIMIT_MAX)?,
        tmp_limit_bytes: bytes_within("limits.tmp", tmp, tmp_min, tmp_max)?,
        concurrency,
        handler_processes: processes,
    })
}

/// Request and limit. When only one is given, the default of the other makes room for it.
fn memory(document: &LimitsDocument) -> Result<(u64, u64), FieldError> {
    let (min, max) = (limits::MEMORY_LIMIT_MIN_BYTES, limits::MEMORY_LIMIT_MAX_BYTES);
    let request = bytes("limits.memory_request", document.memory_request.as_ref(), 0, max)?;
    let limit = bytes("limits.memory_limit", document.memory_limit.as_ref(), min, max)?;
    let limit = limit.unwrap_or_else(|| limits::MEMORY_LIMIT_DEFAULT_BYTES.max(request.unwrap_or(0)));
    let limit = match document.memory_limit {
        Some(_) => bytes_within("limits.memory_limit", limit, min, max)?,
        None => bytes_within("limits.memory_request", limit, min, max)?,
    };
    let request = request.unwrap_or_else(|| limits::MEMORY_REQUEST_DEFAULT_BYTES.min(limit));
    let request = bytes_within("limits.memory_request", request, 0, max)?;
    if request > limit {
        let allowed = format!("0 B to {}, the memory_limit", show_bytes(limit));
        return Err(FieldError::disagreeing("limits.memory_request", show_bytes(request), allowed));
    }
    Ok((request, limit))
}

fn cpu(document: &LimitsDocument) -> Result<(u64, u64), FieldError> {
    let (min, max) = (limits::CPU_LIMIT_MIN_MILLI, limits::CPU_MAX_MILLI);
    let limit = cpus("limits.cpu_limit", document.cpu_limit.as_ref())?.unwrap_or(0);
    if limit != 0 && !(min..=max).contains(&limit) {
        let allowed = format!("{} to {} CPUs, or 0 for none", min as f64 / 1e3, max / 1_000);
        return Err(FieldError::new("limits.cpu_limit", limit as f64 / 1e3, allowed));
    }
    let most = if limit == 0 { max } else { limit };
    let request = cpus("limits.cpu_request", document.cpu_request.as_ref())?;
    let request = request.unwrap_or_else(|| limits::CPU_REQUEST_DEFAULT_MILLI.min(most));
    if request > most {
        let allowed = format!("0 to {} CPUs", most as f64 / 1e3);
        let error = FieldError::new("limits.cpu_request", request as f64 / 1e3, allowed);
        return Err(FieldError { disagrees: request <= max, ..error });
    }
    Ok((request, limit))
}

fn timeouts(document: &TimeoutsDocument) -> Result<Timeouts, FieldError> {
    let defaults = Timeouts::default();
    let min = limits::TIMEOUT_MIN;
    let (start_max, request_max) = (limits::START_TIMEOUT_MAX, limits::REQUEST_TIMEOUT_MAX);
    let idle =
        match document.idle.as_ref().map(|idle| (idle, idle.duration())) {
            None | Some((_, Some(Duration::ZERO))) => None,
            Some((idle, _)) => {
                let checked = duration("timeouts.idle", Some(idle), min, min, request_max);
                Some(checked.map_err(|e| {
                    FieldError::new("timeouts.idle", idle, format!("0 for none, or {}", e.limit))
                })?)
            }
        };
    Ok(Timeouts {
        start: duration("timeouts.start", document.start.as_ref(), defaults.start, min, start_max)?,
        request: duration("timeouts.request", document.request.as_ref(), defaults.request, min, request_max)?,
        idle,
    })
}

fn env(env: EnvDocument) -> Result<Vec<(String, String)>, FieldError> {
    let count = env.0.len();
    if count > limits::ENV_VARS_MAX {
        let limit = format!("at most {} variables", limits::ENV_VARS_MAX);
        return Err(FieldError::new("env", format!("{count} variables"), limit));
    }
    let bytes: usize = env.0.iter().map(|(name, value)| name.len() + value.len()).sum();
    if bytes > limits::ENV_BYTES_MAX {
        let limit = format!("at most {} bytes of names and values", limits::ENV_BYTES_MAX);
        return Err(FieldError::new("env", format!("{bytes} bytes"), limit));
    }
    let mut seen = BTreeSet::new();
    for (name, value) in &env.0 {
        if name.is_empty() || name.contains(['=', '\0']) {
            return Err(FieldError::new(
                "env",
                format!("a name {name:?}"),
                "names without `=` and NUL, not empty",
            ));
        }
        if ENV_RESERVED.contains(&name.as_str()) || name.starts_with(ENV_RESERVED_PREFIX) {
            let limit = format!("names other than {}, {ENV_RESERVED_PREFIX}*", ENV_RESERVED.join(", "));
            return Err(FieldError::new(format!("env.{name}"), "set by the platform", limit));
        }
        if value.contains('\0') {
            return Err(FieldError::new(format!("env.{name}"), "a value with NUL", "values without NUL"));
        }
        if !seen.insert(name) {
            return Err(FieldError::new(format!("env.{name}"), "given twice", "each name once"));
        }
    }
    Ok(env.0)
}

/// Any amount; the bounds are for the error of what is none.
fn bytes(field: &str, value: Option<&Quantity>, min: u64, max: u64) -> Result<Option<u64>, FieldError> {
    let (min, max) = (show_bytes(min), show_bytes(max));
    let limit = || format!("{min} to {max}, in bytes or as text such as \"128MiB\"");
    value.map(|q| q.bytes().ok_or_else(|| FieldError::new(field, q, limit()))).transpose()
}

fn cpus(field: &str, value: Option<&Quantity>) -> Result<Option<u64>, FieldError> {
    let limit = || {
        let most = limits::CPU_MAX_MILLI / 1_000;
        format!("0 to {most} CPUs in steps of 0.001, as a number or as text such as \"500m\"")
    };
    value.map(|q| q.cpu_milli().ok_or_else(|| FieldError::new(field, q, limit()))).transpose()
}

/// `value`, or an error that names the bounds.
pub(crate) fn within<T: Copy + PartialOrd + Display>(
    field: &str,
    value: T,
    min: T,
    max: T,
) -> Result<T, FieldError> {
    if value < min || value > max {
        return Err(FieldError::new(field, value, format!("{min} to {max}")));
    }
    Ok(value)
}

/// `value`, or an error that names the bounds that other fields leave it; by itself it could be `least` to `most`.
pub(crate) fn beside<T: Copy + PartialOrd + Display>(
    field: &str,
    value: T,
    (min, max): (T, T),
    (least, most): (T, T),
) -> Result<T, FieldError> {
    let disagrees = value >= least && value <= most;
    within(field, value, min, max).map_err(|error| FieldError { disagrees, ..error })
}

/// The same for amounts of memory, which are told as people write them.
fn bytes_within(field: &str, value: u64, min: u64, max: u64) -> Result<u64, FieldError> {
    if value < min || value > max {
        let allowed = format!("{} to {}", show_bytes(min), show_bytes(max));
        return Err(FieldError::new(field, show_bytes(value), allowed));
    }
    Ok(value)
}

/// A finite number from `min` to `max`.
pub(crate) fn factor(field: &str, value: f64, min: f64, max: f64) -> Result<f64, FieldError> {
    if value.is_nan() {
        Err(FieldError::new(field, value, format!("{min} to {max}")))
    } else {
        within(field, value, min, max)
    }
}

/// A share: above 0, at most 1.
pub(crate) fn share(field: &str, value: f64) -> Result<f64, FieldError> {
    if value > 0.0 && value <= 1.0 {
        Ok(value)
    } else {
        Err(FieldError::new(field, value, "above 0, at most 1"))
    }
}

/// A duration from `min` to `max`, or the default.
pub(crate) fn duration(
    field: &str,
    value: Option<&Quantity>,
    default: Duration,
    min: Duration,
    max: Duration,
) -> Result<Duration, FieldError> {
    let Some(quantity) = value else { return Ok(default) };
    let allowed = || {
        let (min, max) = (show_duration(min), show_duration(max));
        format!("{min} to {max}, as seconds or text such as \"500ms\", \"30s\"")
    };
    match quantity.duration() {
        Some(duration) if duration >= min && duration <= max => Ok(duration),
        _ => Err(FieldError::new(field, quantity, allowed())),
    }
}

#[cfg(test)]
mod tests;
