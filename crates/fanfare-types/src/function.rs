//! What a user registers.

use std::fmt;
use std::sync::Arc;
use std::time::Duration;

use crate::limits;
use crate::{FunctionId, FunctionName, Given, Reach, Resources, RevisionId, Scaling};

/// Why a name was refused.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum InvalidName {
    /// Nothing was given.
    Empty,
    /// Longer than [`limits::FUNCTION_NAME_LEN_MAX`].
    TooLong {
        /// Bytes given.
        len: usize,
    },
    /// Holds a character that a host name and a path cannot carry.
    Character {
        /// The first such character.
        bad: char,
    },
    /// Begins or ends with a punctuation mark.
    Edge,
}

/// What a name is.
const FORM: &str = "1 to 63 characters of a-z 0-9 - _ .";

impl fmt::Display for InvalidName {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            InvalidName::Empty => write!(f, "is empty; give {FORM}"),
            InvalidName::TooLong { len } => {
                write!(f, "has {len} characters; give {FORM}")
            }
            InvalidName::Character { bad } => write!(f, "holds {bad:?}; give {FORM}"),
            InvalidName::Edge => write!(f, "must begin and end with a letter or a digit; give {FORM}"),
        }
    }
}

impl std::error::Error for InvalidName {}

/// SHA-256 of a function's packed code: its address among the blobs.
#[derive(Clone, Copy, Default, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct CodeDigest(pub [u8; 32]);

impl fmt::Display for CodeDigest {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        self.0.iter().try_for_each(|b| write!(f, "{b:02x}"))
    }
}

impl fmt::Debug for CodeDigest {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{self}")
    }
}

impl std::str::FromStr for CodeDigest {
    type Err = &'static str;

    fn from_str(s: &str) -> Result<Self, Self::Err> {
        let bytes = s.as_bytes();
        let mut digest = [0; 32];
        // A sign would pass as a digit otherwise.
        if bytes.len() != 64 || !bytes.iter().all(u8::is_ascii_hexdigit) {
            return Err("a digest is 64 hexadecimal digits");
        }
        for (out, pair) in digest.iter_mut().zip(bytes.chunks_exact(2)) {
            let text = std::str::from_utf8(pair).map_err(|_| "a digest is 64 hexadecimal digits")?;
            *out = u8::from_str_radix(text, 16).map_err(|_| "a digest is 64 hexadecimal digits")?;
        }
        Ok(CodeDigest(digest))
    }
}

/// What the code is, so that the runtime knows how to start it.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Contract {
    /// A Python file with `handler(event, context)`; sandboxes are forked from a zygote that imported it.
    Python {
        /// File relative to the code's root, e.g. `hello.py`.
        file: String,
        /// Name of the handler in it, e.g. `handler`.
        handler: String,
    },
    /// A JavaScript file that exports `handler(event, context)`.
    Node {
        /// File relative to the code's root.
        file: String,
        /// Exported name.
        handler: String,
    },
    /// Any program that serves HTTP on `$PORT`, or on the listening socket it inherits as descriptor 3
    /// (`LISTEN_FDS=1`, as systemd passes it).
    Http {
        /// Program and arguments; a relative program is looked up in the code's root first, then in `PATH`.
        command: Vec<String>,
        /// Whether it takes the inherited listener. Otherwise it binds `$PORT`, and its `listen` is its readiness.
        inherits_listener: bool,
        /// What it speaks there.
        protocol: Protocol,
    },
    /// Nothing is run: the `fake` runtime answers by itself.
    Fake,
}

impl Contract {
    /// What its sandboxes speak.
    #[must_use]
    pub fn protocol(&self) -> Protocol {
        match self {
            Contract::Http { protocol, .. } => *protocol,
            Contract::Python { .. } | Contract::Node { .. } | Contract::Fake => Protocol::Http1,
        }
    }
}

/// What a sandbox speaks on its socket.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum Protocol {
    /// HTTP/1.1.
    #[default]
    Http1,
    /// HTTP/2 without TLS, begun with it (prior knowledge): gRPC, for one.
    H2c,
}

impl Protocol {
    const H2C_PREFIX: &str = "h2c+";

    /// An endpoint's address with the protocol that is spoken there.
    #[must_use]
    pub fn at(self, endpoint: Arc<str>) -> Arc<str> {
        match self {
            Protocol::Http1 => endpoint,
            Protocol::H2c => format!("{}{endpoint}", Protocol::H2C_PREFIX).into(),
        }
    }

    /// The protocol spoken at an endpoint, and its address.
    #[must_use]
    pub fn of(endpoint: &str) -> (Self, &str) {
        match endpoint.strip_prefix(Protocol::H2C_PREFIX) {
            Some(address) => (Protocol::H2c, address),
            None => (Protocol::Http1, endpoint),
        }
    }
}

/// How much a sandbox reserves and may use, and how many requests it takes.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Sizing {
    /// Reserved on the node; what placement counts.
    pub request: Resources,
    /// Enforced on the sandbox. `cpu_milli == 0` is no CPU limit.
    pub limit: Resources,
    /// Processes and threads.
    pub pids_limit: u32,
    /// Bytes of its private `/tmp`.
    pub tmp_limit_bytes: u64,
    /// Requests one sandbox serves at once: its slots. 1 to [`limits::CONCURRENCY_MAX`].
    pub concurrency: u32,
    /// Handler processes inside one sandbox (handler contracts only); at most `concurrency`, which it divides into.
    pub handler_processes: u32,
}

impl Default for Sizing {
    fn default() -> Self {
        Sizing {
            request: Resources::new(limits::CPU_REQUEST_DEFAULT_MILLI, limits::MEMORY_REQUEST_DEFAULT_BYTES),
            limit: Resources::new(0, limits::MEMORY_LIMIT_DEFAULT_BYTES),
            pids_limit: limits::PIDS_LIMIT_DEFAULT,
            tmp_limit_bytes: limits::TMP_LIMIT_DEFAULT_BYTES,
            concurrency: 1,
            handler_processes: 1,
        }
    }
}

/// How long things may take.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Timeouts {
    /// Creation ordered to ready. Not part of `request`'s meaning, but a waiting request's own deadline still holds.
    pub start: Duration,
    /// Accepted to answered, waiting included: the one timeout of every hop.
    pub request: Duration,
    /// The longest that no byte of a request in its sandbox may move, either way. `None`: as long as `request` allows.
    pub idle: Option<Duration>,
}

impl Default for Timeouts {
    fn default() -> Self {
        let (start, request) = (limits::START_TIMEOUT_DEFAULT, limits::REQUEST_TIMEOUT_DEFAULT);
        Timeouts { start, request, idle: None }
    }
}

/// How a data plane chooses among free slots.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum Balance {
    /// Knative's: first free for small concurrency, the better of two at random otherwise.
    #[default]
    Knative,
    /// Fewest requests in flight.
    LeastLoaded,
    /// In turn.
    RoundRobin,
    /// Any free one.
    Random,
    /// Consistent hashing with bounded loads and random updates: the same key goes to the same sandbox.
    ChRlu,
    /// Hermod's: pack onto busy sandboxes while load is low, least loaded when it is high.
    Hermod,
}

/// A function as registered: everything but its id and revision.
#[derive(Clone, Debug, PartialEq)]
pub struct FunctionSpec {
    /// Its name.
    pub name: FunctionName,
    /// The runtime that makes its sandboxes: `process` or `fake`.
    pub runtime: Arc<str>,
    /// How it is started.
    pub contract: Contract,
    /// Its packed code (a tar archive); `None` for [`Contract::Fake`].
    pub code: Option<CodeDigest>,
    /// Environment of its sandboxes, in the order given.
    pub env: Vec<(String, String)>,
    /// Secrets and files that its sandboxes get.
    pub given: Given,
    /// Amounts.
    pub sizing: Sizing,
    /// Times.
    pub timeouts: Timeouts,
    /// Scale.
    pub scaling: Scaling,
    /// Requests that may wait on one data plane.
    pub queue_limit: u32,
    /// Choice among free slots.
    pub balance: Balance,
}

impl FunctionSpec {
    /// The part a node needs.
    #[must_use]
    pub fn revision(&self, id: RevisionId) -> RevisionSpec {
        RevisionSpec {
            id,
            name: self.name.clone(),
            runtime: self.runtime.clone(),
            contract: self.contract.clone(),
            code: self.code,
            env: self.env.clone(),
            given: self.given.clone(),
            sizing: self.sizing.clone(),
            timeouts: self.timeouts,
        }
    }

    /// The part a data plane needs.
    #[must_use]
    pub fn route(&self, id: RevisionId) -> FunctionRoute {
        FunctionRoute {
            id: id.function,
            revision: id.number,
            name: self.name.clone(),
            concurrency: self.sizing.concurrency,
            request_timeout: self.timeouts.request,
            idle_timeout: self.timeouts.idle,
            queue_limit: self.queue_limit,
            balance: self.balance,
            reach: Reach::Named,
        }
    }
}

/// What a node must know to make sandboxes of a revision.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct RevisionSpec {
    /// Which.
    pub id: RevisionId,
    /// The function's name, for logs and the function's own environment.
    pub name: FunctionName,
    /// The runtime to use.
    pub runtime: Arc<str>,
    /// How it is started.
    pub contract: Contract,
    /// Its packed code.
    pub code: Option<CodeDigest>,
    /// Environment.
    pub env: Vec<(String, String)>,
    /// Secrets and files. The secrets' values come apart: [`crate::ToNode::Secrets`].
    pub given: Given,
    /// Amounts.
    pub sizing: Sizing,
    /// Times.
    pub timeouts: Timeouts,
}

/// What a data plane must know to route, queue and throttle a function. Small: there may be a million.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct FunctionRoute {
    /// Which.
    pub id: FunctionId,
    /// The revision that new requests are for.
    pub revision: u32,
    /// How clients name it.
    pub name: FunctionName,
    /// Slots of one sandbox.
    pub concurrency: u32,
    /// Accepted to answered.
    pub request_timeout: Duration,
    /// The longest that no byte of a request in its sandbox may move, if that is limited.
    pub idle_timeout: Option<Duration>,
    /// Requests that may wait.
    pub queue_limit: u32,
    /// Choice among free slots.
    pub balance: Balance,
    /// How requests come to it.
    pub reach: Reach,
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn endpoints_say_their_protocol() {
        for protocol in [Protocol::Http1, Protocol::H2c] {
            assert_eq!(Protocol::of(&protocol.at("unix:/s".into())), (protocol, "unix:/s"));
        }
        assert_eq!(&*Protocol::Http1.at("tcp:a:1".into()), "tcp:a:1");
    }

    #[test]
    fn digests_print_and_parse() {
        let digest = CodeDigest([0xa5; 32]);
        assert_eq!(digest.to_string().parse::<CodeDigest>().unwrap(), digest);
        assert!("a5".parse::<CodeDigest>().is_err());
        assert!("zz".repeat(32).parse::<CodeDigest>().is_err());
        assert!("é".repeat(32).parse::<CodeDigest>().is_err());
    }
}
