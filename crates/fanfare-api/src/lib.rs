//! The control API's JSON documents, their checks, and their translation to and from the domain.
//!
//! [`FunctionDocument`] is what a user writes (the same field names in JSON and in `fanfare.toml`);
//! `FunctionSpec::try_from` checks every field against its limit and says which one is wrong, what is allowed and
//! what was given. The other documents are what the API answers. Nothing here knows HTTP or a file.

mod answers;
mod asynchronous;
mod check;
mod cluster;
mod constraints;
mod dirigent;
mod explain;
mod field_error;
mod function;
mod given;
mod problem;
mod quantity;
mod revisions;
mod scaling;
mod schedules;
mod schema;
mod secret;
mod shape;
mod stored;
mod tables;
mod webhooks;
mod whole;

pub use answers::{
    BlobDocument, DecisionDocument, DeployOutcome, DeployResult, FailedName, FailureCountDocument,
    FailureDocument, FunctionListDocument, FunctionState, FunctionStatusDocument, FunctionSummaryDocument,
    LoadDocument, LogLineDocument, LogStreamName, PrepareResult, SandboxCounts, StagesDocument,
};
pub use asynchronous::{
    AsyncAcceptedDocument, AsyncCallbackDocument, AsyncInvocationDocument, AsyncListDocument,
    AsyncResultDocument,
};
pub use cluster::{
    ClusterStatusDocument, DataPlaneDocument, HealthDocument, LeaderDocument, NodeDocument, NodeListDocument,
    ResourcesDocument,
};
pub use constraints::{constrain, digest_schema, duration_text_schema, name_schema};
pub use dirigent::{DirigentPatch, DirigentRegistration};
pub use explain::{
    OrderDocument, RequestDocument, RequestExplanationDocument, RequestOutcome, RequestStageDocument,
    SlotDocument,
};
pub use field_error::FieldError;
pub use function::{
    BalanceName, EnvDocument, FunctionDocument, HandlerDocument, LimitsDocument, ProtocolName,
    TimeoutsDocument,
};
pub use given::{FileDocument, SecretPlaceName, SecretUseDocument};
pub use problem::{PROBLEM_CONTENT_TYPE, Problem};
pub use quantity::{Quantity, parse_bytes, parse_cpus, parse_duration};
pub use revisions::{
    RevisionDocument, RevisionFailureDocument, RevisionListDocument, RollbackDocument, ShareDocument,
    TargetDocument, TrafficChange, TrafficDocument, TrafficResult,
};
pub use scaling::{MetricName, OnDemandName, PolicyName, ProfileName, ScalingDocument};
pub use schedules::{
    DeliveryName, FiredDocument, FiredOutcome, FiringDocument, MissedName, OccurrenceDocument,
    ScheduleDocument, ScheduleListDocument, ScheduleOutcome, ScheduleResult, ScheduleRunResult,
    ScheduleState, ScheduleStatusDocument, ScheduleSummaryDocument,
};
pub use schema::{settings_fields, settings_schema};
pub use secret::{SecretDocument, SecretListDocument, SecretValueDocument};
pub use stored::{StoredError, decode_stored, encode_stored};
pub use webhooks::{VerifyName, WebhookDocument, WebhookListDocument, WebhookResult, WebhookStatusDocument};
