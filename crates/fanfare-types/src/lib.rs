//! The words of the system, as data.
//!
//! Ids, functions, resources, reasons, and the messages that the three roles exchange.
//! Nothing here knows an encoding, a clock, a socket or a file: the edge crates (`fanfare-api`, `fanfare-link`)
//! translate to and from the outside, so that decisions can be tested and simulated as plain functions.

mod callback;
mod entrusted;
mod epoch;
mod function;
mod human;
mod id;
pub mod limits;
mod message;
mod peer_name;
mod reason;
mod request;
mod resources;
mod scaling;
mod secret;
mod stages;
mod time;
mod traffic;
mod webhook;

pub use callback::CALLBACK_ID_FIELD;
pub use entrusted::{EntrustRefusal, EntrustedCall};
pub use epoch::EpochGate;
pub use function::{
    Balance, CodeDigest, Contract, FunctionRoute, FunctionSpec, InvalidName, Protocol, RevisionSpec, Sizing,
    Timeouts,
};
pub use human::HumanDuration;
pub use id::{DataPlaneId, Epoch, FunctionId, FunctionName, NodeId, RevisionId, SandboxId};
pub use message::{
    Condemned, DataPlaneHello, FromDataPlane, FromNode, FunctionLoad, GoneCause, HeldLease, LogSelect,
    NodeHello, RequestFailures, SandboxRecord, SandboxUsage, StopMode, ToDataPlane, ToNode,
};
pub use peer_name::{SUCCESSOR_NAMES, given_peer_name, is_peer_name, peer_name_of};
pub use reason::{ExitCause, Reason, StartFailure, StartFailureKind};
pub use request::{RequestEnd, RequestRecord, SlotRecord, SlotWhy};
pub use resources::Resources;
pub use scaling::{Hpa, Kpa, Metric, OnDemand, Scaling, ScalingPolicy};
pub use secret::{ConfigFile, Given, SecretName, SecretPlace, SecretUse, SecretValue};
pub use stages::Stages;
pub use time::Timestamp;
pub use traffic::{InvalidTag, Reach, Share, Tag, Target, Traffic};
pub use webhook::{WebhookRoute, WebhookScheme, WebhookSpec};
