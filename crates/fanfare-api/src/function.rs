//! A function as a user writes it.

use std::collections::BTreeMap;
use std::fmt;

use fanfare_types::{Balance, Contract, FunctionSpec, Protocol};
use serde::de::value::MapAccessDeserializer;
use serde::de::{MapAccess, Visitor};
use serde::{Deserialize, Deserializer, Serialize, Serializer};
use serde_path_to_error::Segment;
use utoipa::ToSchema;

use crate::tables::Tables;
use crate::{FieldError, FileDocument, Quantity, ScalingDocument, SecretUseDocument, given, shape, whole};

/// A function: what is registered, and what is answered. Only `name` and `handler` must be given.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize, ToSchema)]
#[serde(deny_unknown_fields)]
pub struct FunctionDocument {
    /// 1 to 63 characters of `a-z 0-9 - _ .`, a letter or a digit at both ends.
    pub name: String,
    /// What makes its sandboxes: `process` (default), or `fake` for handlers of kind `fake`.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub runtime: Option<String>,
    /// What is run.
    #[serde(deserialize_with = "handler")]
    pub handler: HandlerDocument,
    /// SHA-256 of the packed code as 64 hexadecimal digits: the address under which it was uploaded.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub code: Option<String>,
    /// Environment variables.
    #[serde(default, skip_serializing_if = "EnvDocument::is_empty")]
    #[schema(value_type = std::collections::BTreeMap<String, String>)]
    pub env: EnvDocument,
    /// Secrets that its sandboxes get, each under the name of the variable or of the file in `/run/secrets`. At most 64;
    /// a name has 1 to 128 characters of `A-Z a-z 0-9 _ . -` and begins with none of `. -`.
    #[serde(default, skip_serializing_if = "BTreeMap::is_empty")]
    pub secrets: BTreeMap<String, SecretUseDocument>,
    /// Files that its sandboxes find in `/run/config`, by their paths there: what the function reads and is no code and no
    /// secret. At most 64 with 64 KiB each and 256 KiB together.
    #[serde(default, skip_serializing_if = "BTreeMap::is_empty")]
    pub files: BTreeMap<String, FileDocument>,
    /// What a sandbox reserves and may use.
    #[serde(default)]
    pub limits: LimitsDocument,
    /// Requests that one sandbox serves at once. Default 1; 1 to 1000.
    #[serde(default, deserialize_with = "whole::optional", skip_serializing_if = "Option::is_none")]
    pub concurrency: Option<u32>,
    /// Handler processes in one sandbox, which share its `concurrency` evenly. Default 1.
    #[serde(default, deserialize_with = "whole::optional", skip_serializing_if = "Option::is_none")]
    pub handler_processes: Option<u32>,
    /// How long things may take.
    #[serde(default)]
    pub timeouts: TimeoutsDocument,
    /// How many sandboxes there are.
    #[serde(default)]
    pub scaling: ScalingDocument,
    /// Requests that may wait on one data plane. Default 10000; 1 to 1000000.
    #[serde(default, deserialize_with = "whole::optional", skip_serializing_if = "Option::is_none")]
    pub queue_limit: Option<u32>,
    /// How a data plane chooses among free slots. Default `knative`.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub balance: Option<BalanceName>,
}

/// What is run.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize, ToSchema)]
#[serde(tag = "kind", rename_all = "snake_case", deny_unknown_fields)]
pub enum HandlerDocument {
    /// A Python file with `handler(event, context)`.
    Python {
        /// Path within the code, e.g. `hello.py`.
        file: String,
        /// The function in it. Default `handler`.
        #[serde(default = "default_handler")]
        handler: String,
    },
    /// A JavaScript file that exports `handler(event, context)`.
    Node {
        /// Path within the code, e.g. `hello.js`.
        file: String,
        /// The exported name. Default `handler`.
        #[serde(default = "default_handler")]
        handler: String,
    },
    /// A program that serves HTTP on `$PORT`.
    Http {
        /// Program and arguments; a relative program is looked up in the code first, then in `PATH`.
        command: Vec<String>,
        /// Whether it serves on the listening socket that it inherits as descriptor 3 instead. Default false.
        #[serde(default)]
        inherits_listener: bool,
        /// What it speaks. Default `http1`.
        #[serde(default)]
        protocol: ProtocolName,
    },
    /// Nothing is run; the `fake` runtime answers.
    Fake {},
}

/// Reads a handler from a table: what serde derives would take a list that begins with the kind, too.
fn handler<'de, D: Deserializer<'de>>(deserializer: D) -> Result<HandlerDocument, D::Error> {
    struct Table;
    impl<'de> Visitor<'de> for Table {
        type Value = HandlerDocument;

        fn expecting(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
            f.write_str("a table")
        }

        fn visit_map<A: MapAccess<'de>>(self, map: A) -> Result<HandlerDocument, A::Error> {
            HandlerDocument::deserialize(MapAccessDeserializer::new(map))
        }
    }
    deserializer.deserialize_map(Table)
}

fn default_handler() -> String {
    "handler".to_owned()
}

impl HandlerDocument {
    /// The word in `kind`.
    #[must_use]
    pub fn kind(&self) -> &'static str {
        match self {
            HandlerDocument::Python { .. } => "python",
            HandlerDocument::Node { .. } => "node",
            HandlerDocument::Http { .. } => "http",
            HandlerDocument::Fake {} => "fake",
        }
    }
}

/// What a sandbox reserves and may use. A request is what placement reserves; a limit is what is enforced.
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize, ToSchema)]
#[serde(deny_unknown_fields)]
pub struct LimitsDocument {
    /// Reserved memory in bytes, or text such as `"16MiB"`. Default 16 MiB (or `memory_limit`, when that is less).
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub memory_request: Option<Quantity>,
    /// Most memory in bytes, or text such as `"128MiB"`. Default 128 MiB (or `memory_request`, when that is more).
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub memory_limit: Option<Quantity>,
    /// Reserved CPUs, or text such as `"10m"`. Default 0.01 (or `cpu_limit`, when that is less).
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub cpu_request: Option<Quantity>,
    /// Most CPUs, or text such as `"500m"`. Default 0: no limit.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub cpu_limit: Option<Quantity>,
    /// Most processes and threads. Default 128.
    #[serde(default, deserialize_with = "whole::optional", skip_serializing_if = "Option::is_none")]
    pub pids: Option<u32>,
    /// Bytes of the private `/tmp`, or text such as `"64MiB"`. Default 64 MiB, and at most half of the
    /// memory limit, against which its files count.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub tmp: Option<Quantity>,
}

/// How long things may take: seconds, or text such as `"500ms"`, `"30s"`.
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize, ToSchema)]
#[serde(deny_unknown_fields)]
pub struct TimeoutsDocument {
    /// From ordered to ready. Default 30 s; 1 ms to 1 h.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub start: Option<Quantity>,
    /// From accepted to answered, waiting included. Default 60 s; 1 ms to 24 h.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub request: Option<Quantity>,
    /// The longest that no byte of a request in its sandbox may move. Default 0: no such limit; else 1 ms to 24 h.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub idle: Option<Quantity>,
}

/// What a program speaks on its socket.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize, ToSchema)]
#[serde(rename_all = "snake_case")]
pub enum ProtocolName {
    /// HTTP/1.1.
    #[default]
    Http1,
    /// HTTP/2 without TLS, begun with it (prior knowledge), as gRPC servers do.
    H2c,
}

impl From<Protocol> for ProtocolName {
    fn from(protocol: Protocol) -> Self {
        match protocol {
            Protocol::Http1 => ProtocolName::Http1,
            Protocol::H2c => ProtocolName::H2c,
        }
    }
}

impl From<ProtocolName> for Protocol {
    fn from(name: ProtocolName) -> Self {
        match name {
            ProtocolName::Http1 => Protocol::Http1,
            ProtocolName::H2c => Protocol::H2c,
        }
    }
}

/// How a data plane chooses among free slots.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize, ToSchema)]
#[serde(rename_all = "snake_case")]
pub enum BalanceName {
    /// First free for small concurrency, else the better of two at random.
    Knative,
    /// Fewest requests in flight.
    LeastLoaded,
    /// In turn.
    RoundRobin,
    /// Any free one.
    Random,
    /// Consistent hashing with bounded loads and random updates.
    ChRlu,
    /// Hermod's: pack while load is low, spread when it is high.
    Hermod,
}

/// Environment variables in the order given. The values print as `…`: they may be secrets.
#[derive(Clone, Default, PartialEq, Eq)]
pub struct EnvDocument(pub Vec<(String, String)>);

impl EnvDocument {
    /// Whether there is none.
    #[must_use]
    pub fn is_empty(&self) -> bool {
        self.0.is_empty()
    }

    /// Sets `name`, in its place when it is there already, else at the end.
    pub fn set(&mut self, name: &str, value: &str) {
        match self.0.iter_mut().find(|(known, _)| known == name) {
            Some((_, old)) => value.clone_into(old),
            None => self.0.push((name.to_owned(), value.to_owned())),
        }
    }

    /// Removes `name`.
    pub fn unset(&mut self, name: &str) {
        self.0.retain(|(known, _)| known != name);
    }
}

impl fmt::Debug for EnvDocument {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_map().entries(self.0.iter().map(|(name, _)| (name, "…"))).finish()
    }
}

impl Serialize for EnvDocument {
    fn serialize<S: Serializer>(&self, serializer: S) -> Result<S::Ok, S::Error> {
        serializer.collect_map(self.0.iter().map(|(name, value)| (name, value)))
    }
}

impl<'de> Deserialize<'de> for EnvDocument {
    fn deserialize<D: Deserializer<'de>>(deserializer: D) -> Result<Self, D::Error> {
        struct Pairs;
        impl<'de> Visitor<'de> for Pairs {
            type Value = EnvDocument;

            fn expecting(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
                f.write_str("a table of names and texts")
            }

            fn visit_map<A: MapAccess<'de>>(self, mut map: A) -> Result<EnvDocument, A::Error> {
                let mut env = Vec::new();
                while let Some(pair) = map.next_entry()? {
                    env.push(pair);
                }
                Ok(EnvDocument(env))
            }
        }
        deserializer.deserialize_map(Pairs)
    }
}

impl FunctionDocument {
    /// A function with everything but these two left to the defaults.
    #[must_use]
    pub fn new(name: &str, handler: HandlerDocument) -> Self {
        FunctionDocument {
            name: name.to_owned(),
            runtime: None,
            handler,
            code: None,
            env: EnvDocument::default(),
            secrets: BTreeMap::new(),
            files: BTreeMap::new(),
            limits: LimitsDocument::default(),
            concurrency: None,
            handler_processes: None,
            timeouts: TimeoutsDocument::default(),
            scaling: ScalingDocument::default(),
            queue_limit: None,
            balance: None,
        }
    }

    /// Reads one from JSON. The caller bounds `json` (`limits::API_BODY_BYTES_MAX`).
    ///
    /// # Errors
    /// The field that is missing, unknown, or of the wrong type; the field is `body` when it is not JSON at all.
    pub fn from_json(json: &[u8]) -> Result<Self, FieldError> {
        read_bounded(json, crate::constraints::bounds)
    }
}

/// Reads a document; the error names the field that has the wrong shape.
pub(crate) fn read_json<T: serde::de::DeserializeOwned>(json: &[u8]) -> Result<T, FieldError> {
    read_bounded(json, |_| None)
}

/// The same, where `bounds` knows those of some fields.
pub(crate) fn read_bounded<T: serde::de::DeserializeOwned>(
    json: &[u8],
    bounds: fn(&str) -> Option<String>,
) -> Result<T, FieldError> {
    let mut reader = serde_json::Deserializer::from_slice(json);
    let document =
        serde_path_to_error::deserialize(Tables(&mut reader)).map_err(|e| shape_error(&e, json, bounds))?;
    reader.end().map_err(|e| FieldError::new("body", e, "one JSON object"))?;
    Ok(document)
}

fn kind(value: &serde_json::Value) -> &'static str {
    match value {
        serde_json::Value::Null => "null",
        serde_json::Value::Bool(_) => "a boolean",
        serde_json::Value::Number(_) => "a number",
        serde_json::Value::String(_) => "a string",
        serde_json::Value::Array(_) => "an array",
        serde_json::Value::Object(_) => "an object",
    }
}

/// What serde says, without the names of types that only this program knows.
fn in_words(said: &str) -> String {
    match said.split_once("expected struct ") {
        Some((found, _)) => format!("{found}expected a table"),
        None => said.to_owned(),
    }
}

/// Names the field in which JSON has the wrong shape, with the value there unless it may be a secret.
fn shape_error(
    error: &serde_path_to_error::Error<serde_json::Error>,
    json: &[u8],
    bounds: fn(&str) -> Option<String>,
) -> FieldError {
    let path = error.path().to_string();
    let inner = error.inner().to_string();
    let what = match serde_json::from_slice(json) {
        Ok(serde_json::Value::Object(_)) => None,
        Ok(other) => Some(kind(&other)),
        Err(_) => Some(inner.as_str()),
    };
    if let Some(what) = what {
        return FieldError::new("body", format!("not a JSON object ({what})"), "one JSON object");
    }
    let whole: serde_json::Value = serde_json::from_slice(json).unwrap_or_default();
    let what = in_words(inner.split(" at line ").next().unwrap_or(&inner));
    let step = |at: &'_ serde_json::Value, segment: &Segment| match segment {
        Segment::Map { key } => at.get(key).cloned(),
        Segment::Seq { index } => at.get(index).cloned(),
        Segment::Enum { .. } | Segment::Unknown => Some(at.clone()),
    };
    let found = error.path().iter().try_fold(whole.clone(), |at, segment| step(&at, segment));
    // serde repeats the value in its message; that of an environment variable or a header field may be a secret.
    if path.starts_with("env") || path.starts_with("headers") {
        return shape::variable_error(&path, found.as_ref());
    }
    if path.starts_with("handler")
        && let Some(error) = whole.get("handler").and_then(shape::handler_error)
    {
        return error;
    }
    if path.starts_with("files.")
        && let Some(file) = &found
        && let Some(error) = shape::file_error(&path, file)
    {
        return error;
    }
    let field = if path == "." { "body".to_owned() } else { path.clone() };
    let value = found.map_or_else(|| "missing".to_owned(), |value| value.to_string());
    match bounds(&path) {
        Some(bounds) => FieldError::new(field, value, bounds),
        None => shape::plainly(field, value, &what),
    }
}

impl From<&FunctionSpec> for FunctionDocument {
    /// Every field explicit; `FunctionSpec::try_from` of the result is the specification again.
    fn from(spec: &FunctionSpec) -> Self {
        FunctionDocument {
            name: spec.name.to_string(),
            runtime: Some(spec.runtime.to_string()),
            handler: HandlerDocument::from(&spec.contract),
            code: spec.code.map(|digest| digest.to_string()),
            env: EnvDocument(spec.env.clone()),
            secrets: given::secrets(&spec.given),
            files: given::files(&spec.given),
            limits: LimitsDocument {
                memory_request: Some(Quantity::from_bytes(spec.sizing.request.memory_bytes)),
                memory_limit: Some(Quantity::from_bytes(spec.sizing.limit.memory_bytes)),
                cpu_request: Some(Quantity::from_cpu_milli(spec.sizing.request.cpu_milli)),
                cpu_limit: Some(Quantity::from_cpu_milli(spec.sizing.limit.cpu_milli)),
                pids: Some(spec.sizing.pids_limit),
                tmp: Some(Quantity::from_bytes(spec.sizing.tmp_limit_bytes)),
            },
            concurrency: Some(spec.sizing.concurrency),
            handler_processes: Some(spec.sizing.handler_processes),
            timeouts: TimeoutsDocument {
                start: Some(Quantity::from_duration(spec.timeouts.start)),
                request: Some(Quantity::from_duration(spec.timeouts.request)),
                idle: spec.timeouts.idle.map(Quantity::from_duration),
            },
            scaling: ScalingDocument::from(&spec.scaling),
            queue_limit: Some(spec.queue_limit),
            balance: Some(BalanceName::from(spec.balance)),
        }
    }
}

impl From<&Contract> for HandlerDocument {
    fn from(contract: &Contract) -> Self {
        match contract.clone() {
            Contract::Python { file, handler } => HandlerDocument::Python { file, handler },
            Contract::Node { file, handler } => HandlerDocument::Node { file, handler },
            Contract::Http { command, inherits_listener, protocol } => {
                HandlerDocument::Http { command, inherits_listener, protocol: protocol.into() }
            }
            Contract::Fake => HandlerDocument::Fake {},
        }
    }
}

impl From<Balance> for BalanceName {
    fn from(balance: Balance) -> Self {
        match balance {
            Balance::Knative => BalanceName::Knative,
            Balance::LeastLoaded => BalanceName::LeastLoaded,
            Balance::RoundRobin => BalanceName::RoundRobin,
            Balance::Random => BalanceName::Random,
            Balance::ChRlu => BalanceName::ChRlu,
            Balance::Hermod => BalanceName::Hermod,
        }
    }
}

impl From<BalanceName> for Balance {
    fn from(name: BalanceName) -> Self {
        match name {
            BalanceName::Knative => Balance::Knative,
            BalanceName::LeastLoaded => Balance::LeastLoaded,
            BalanceName::RoundRobin => Balance::RoundRobin,
            BalanceName::Random => Balance::Random,
            BalanceName::ChRlu => Balance::ChRlu,
            BalanceName::Hermod => Balance::Hermod,
        }
    }
}
