//! A form that registers a function.

use fanfare_types::{FunctionSpec, limits};

use super::form::Form;
use crate::{EnvDocument, FieldError, FunctionDocument, HandlerDocument, LimitsDocument, Quantity};

/// How long a request may take, as in Dirigent.
const REQUEST_TIMEOUT_S: u64 = 15 * 60;
/// How long a sandbox may take to come up, as in Dirigent.
const START_TIMEOUT_S: u64 = 60;
/// The windows and the tick of a function whose cold starts are measured (`cold_start_sweep`): it is at zero 6 to 7
/// seconds after its last request.
const SWEEP_STABLE_WINDOW_S: u64 = 6;
const SWEEP_PANIC_WINDOW_SHARE: f64 = 1.0 / 3.0;
const SWEEP_TICK_S: u64 = 1;
/// Under which names a program finds what a form says of its start.
const STARTUP_ENV: [(&str, &str); 2] = [
    ("iteration_multiplier", "ITERATIONS_MULTIPLIER"),
    ("cold_start_busy_loop_ms", "COLD_START_BUSY_LOOP_MS"),
];
/// Fields that have one value.
const SINGLE: [&str; 11] = [
    "name",
    "image",
    "prepull_mode",
    "requested_gpu",
    "scaling_upper_bound",
    "scaling_lower_bound",
    "requested_cpu",
    "requested_memory",
    "cold_start_sweep",
    "iteration_multiplier",
    "cold_start_busy_loop_ms",
];
const PREPULL_MODES: [&str; 5] = ["none", "all_sync", "all_async", "one_sync", "one_async"];

/// What a form registers: an image under a name, with its scale and its reservations.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct DirigentRegistration {
    /// The function's name.
    pub name: String,
    /// The image that it runs.
    pub image: String,
    /// `None`: as many sandboxes as may be.
    scaling_max: Option<u32>,
    scaling_min: u32,
    /// Reserved; 0: as of any function.
    cpu_milli: u64,
    /// Reserved; 0: as of any function.
    memory_mib: u64,
    /// Whether its sandboxes go soon, so that the next request is a cold start.
    sweep: bool,
    env: EnvDocument,
    arguments: Vec<String>,
}

impl DirigentRegistration {
    /// Reads a form. The caller bounds it (`limits::FORM_BYTES_MAX`).
    ///
    /// # Errors
    /// The field that is missing or wrong.
    pub fn from_form(bytes: &[u8]) -> Result<Self, FieldError> {
        const COUNT: &str = "a whole number, at least 0";
        let form = Form::parse(bytes)?;
        form.once(&SINGLE)?;
        let required = |field: &str, what: &str| {
            form.text(field).map(str::to_owned).ok_or_else(|| FieldError::missing(field, what))
        };
        let name = required("name", "the function's name")?;
        let image = required("image", "the image that it runs")?;
        if image.chars().count() > limits::IMAGE_NAME_LEN_MAX {
            let limit = format!("at most {} characters", limits::IMAGE_NAME_LEN_MAX);
            return Err(FieldError::new("image", image, limit));
        }
        check_port(&form)?;
        if let Some(mode) = form.text("prepull_mode").filter(|mode| !PREPULL_MODES.contains(mode)) {
            return Err(FieldError::new("prepull_mode", format!("{mode:?}"), PREPULL_MODES.join(", ")));
        }
        if let Some(devices) = form.number::<u64>("requested_gpu", COUNT)?.filter(|devices| *devices > 0) {
            return Err(FieldError::new("requested_gpu", devices, "0: no node offers any"));
        }
        Ok(DirigentRegistration {
            name,
            image,
            scaling_max: form.number("scaling_upper_bound", COUNT)?.filter(|max| *max > 0),
            scaling_min: form.number("scaling_lower_bound", COUNT)?.unwrap_or(0),
            cpu_milli: form.number("requested_cpu", COUNT)?.unwrap_or(0),
            memory_mib: form.number("requested_memory", COUNT)?.unwrap_or(0),
            sweep: form.truth("cold_start_sweep")?,
            env: env(&form)?,
            arguments: form.all("program_args").map(str::to_owned).collect(),
        })
    }

    /// The function: what `image` stands for, under the form's name and with its settings. Of what the form does not
    /// say, the image's own settings hold.
    ///
    /// # Errors
    /// The field that is wrong, of the function as [`FunctionDocument`] has it.
    pub fn function(&self, image: &FunctionDocument) -> Result<FunctionSpec, FieldError> {
        let mut document = FunctionDocument { name: self.name.clone(), ..image.clone() };
        self.env.0.iter().for_each(|(name, value)| document.env.set(name, value));
        match &mut document.handler {
            HandlerDocument::Http { command, .. } => command.extend_from_slice(&self.arguments),
            _ if self.arguments.is_empty() => {}
            other => {
                let limit = format!("none with a handler of kind {}", other.kind());
                return Err(FieldError::disagreeing("program_args", "given", limit));
            }
        }
        self.reserve(&mut document.limits)?;
        let scaling = &mut document.scaling;
        scaling.max = self.scaling_max.or(scaling.max);
        if self.scaling_min > 0 {
            scaling.min = Some(self.scaling_min);
        }
        if self.sweep {
            scaling.stable_window = Some(Quantity::Integer(SWEEP_STABLE_WINDOW_S));
            scaling.panic_window_share = Some(SWEEP_PANIC_WINDOW_SHARE);
            scaling.tick = Some(Quantity::Integer(SWEEP_TICK_S));
        }
        let timeouts = &mut document.timeouts;
        timeouts.request.get_or_insert(Quantity::Integer(REQUEST_TIMEOUT_S));
        timeouts.start.get_or_insert(Quantity::Integer(START_TIMEOUT_S));
        FunctionSpec::try_from(document)
    }

    /// Requests, not limits: what a sandbox may use stays the image's, or what any function may, and is at least what is
    /// reserved.
    fn reserve(&self, limits: &mut LimitsDocument) -> Result<(), FieldError> {
        if self.cpu_milli > 0 {
            limits.cpu_request = Some(Quantity::from_cpu_milli(self.cpu_milli));
        }
        if self.memory_mib == 0 {
            return Ok(());
        }
        let too_many =
            || FieldError::new("requested_memory", self.memory_mib, "an amount in MiB that exists");
        let bytes = self.memory_mib.checked_mul(1 << 20).ok_or_else(too_many)?;
        limits.memory_request = Some(Quantity::from_bytes(bytes));
        if let Some(limit) = limits.memory_limit.as_ref().and_then(Quantity::bytes) {
            limits.memory_limit = Some(Quantity::from_bytes(limit.max(bytes)));
        }
        Ok(())
    }
}

/// The port inside a sandbox and its protocol, which come as two values of one field. A function finds its port in
/// `$PORT`, so the number says nothing; HTTP needs TCP.
fn check_port(form: &Form) -> Result<(), FieldError> {
    let mut values = form.all("port_forwarding");
    let (port, protocol) = (values.next(), values.next());
    if let Some(port) = port.filter(|port| port.parse::<u16>().is_err()) {
        return Err(FieldError::new("port_forwarding", format!("{port:?}"), "a port, then tcp"));
    }
    match protocol {
        None => Ok(()),
        Some(protocol) if protocol.eq_ignore_ascii_case("tcp") => Ok(()),
        Some(other) => Err(FieldError::new("port_forwarding", format!("{other:?}"), "tcp as the protocol")),
    }
}

fn env(form: &Form) -> Result<EnvDocument, FieldError> {
    let mut env = EnvDocument::default();
    for pair in form.all("env_vars") {
        // The value may be a secret, and what has no name is all value.
        let (name, value) = pair
            .split_once('=')
            .ok_or_else(|| FieldError::new("env_vars", "a variable without a name", "NAME=VALUE each"))?;
        env.set(name, value);
    }
    for (field, name) in STARTUP_ENV {
        if let Some(number) = form.number::<u64>(field, "a whole number, at least 0")? {
            env.set(name, &number.to_string());
        }
    }
    Ok(env)
}
