//! Limits of the control plane's shell. Those of the whole system are in `fanfare_types::limits`.

use std::time::Duration;

/// Names of nodes ever seen.
pub(crate) const NODES_MAX: usize = 20_000;
/// Names of data planes ever seen.
pub(crate) const DATA_PLANES_MAX: usize = 1_000;
/// Bytes of a data plane's address: a name, a colon and a port.
pub(crate) const PEER_ADDRESS_BYTES_MAX: usize = 253 + 6;
/// Runtimes of one node.
pub(crate) const RUNTIMES_MAX: usize = 16;
/// Bytes of a runtime's name.
pub(crate) const RUNTIME_NAME_BYTES_MAX: usize = 64;
/// Time that a new stream has to say who it is.
pub(crate) const HELLO_TIMEOUT: Duration = Duration::from_secs(1);
/// Batches, registrations and questions that wait for the engine; then whoever brings the next one waits.
pub(crate) const ENGINE_QUEUE_MAX: usize = 1_024;
/// Of those, how many are taken before timers are looked at.
pub(crate) const ENGINE_BATCH_MAX: usize = 64;
/// How long a registration that is durable waits for data planes to hear of it before it is answered all the same: a
/// data plane that takes longer is about to be lost.
pub(crate) const ROUTED_TIMEOUT: Duration = Duration::from_secs(1);
/// How long a change of traffic that is durable waits to take effect before it is answered as pending.
pub(crate) const TRAFFIC_TIMEOUT: Duration = Duration::from_secs(20);
/// Requests that wait for a preparation.
pub(crate) const PREPARE_WAITERS_MAX: usize = 1_024;
/// Findings about revisions' starts that wait to be kept; more are told and not kept.
pub(crate) const PROOFS_QUEUE_MAX: usize = 1_024;
/// Of them, those that are being written together.
pub(crate) const PROOFS_IN_FLIGHT_MAX: usize = 64;
/// How much longer than a function's start timeout a preparation may take: code is fetched and unpacked first.
pub(crate) const PREPARE_GRACE: Duration = Duration::from_secs(10);

/// Changes that wait for the registry; then callers wait.
pub(crate) const REGISTRY_QUEUE_MAX: usize = 4_096;
/// Changes on their way to the store.
pub(crate) const REGISTRY_IN_FLIGHT_MAX: usize = 1_024;
/// Entries of the store that are read at once when a term begins: what is read to be parsed takes no more memory than
/// these, however many there are.
pub(crate) const LOAD_PAGE_ENTRIES: usize = 256;
/// Ids reserved by one write. Those of a block that a crash leaves unused are never used.
pub(crate) const ID_BLOCK: u32 = 1_000;
/// Revisions of one function that are kept, the latest included; besides them those that traffic or a tag names, and the
/// newest that is not known to be broken.
pub(crate) const REVISIONS_KEPT: usize = 20;
/// First pause before a key whose write failed is read again; doubles to the maximum.
pub(crate) const REREAD_BACKOFF_MIN: Duration = Duration::from_millis(100);
/// Longest such pause.
pub(crate) const REREAD_BACKOFF_MAX: Duration = Duration::from_secs(5);
/// Attempts to become the leader against a store in which somebody else keeps doing so.
pub(crate) const LEADER_ATTEMPTS_MAX: u32 = 5;

/// Changes of webhooks that wait; then callers wait.
pub(crate) const WEBHOOKS_QUEUE_MAX: usize = 64;
/// Changes of schedules that wait; then callers wait.
pub(crate) const SCHEDULES_QUEUE_MAX: usize = 256;
/// Of those, how many wait for a write of the same schedule; more are refused.
pub(crate) const SCHEDULE_CHANGES_MAX: usize = 64;
/// Time that a data plane has to accept a schedule's call before it is asked again.
pub(crate) const ENTRUST_TIMEOUT: Duration = Duration::from_secs(10);
/// How long firing a schedule by hand waits for a data plane before it is answered as under way.
pub(crate) const RUN_TIMEOUT: Duration = Duration::from_secs(5);
/// How long a change of a schedule waits to be durable before it is answered as unknown.
pub(crate) const SCHEDULE_CHANGE_TIMEOUT: Duration = Duration::from_secs(10);
/// Next occurrences that are told of a schedule.
pub(crate) const UPCOMING_MAX: usize = 5;

/// Connections to the API.
pub(crate) const API_CONNECTIONS_MAX: usize = 1_024;
/// The same where Dirigent's forms are taken: its load generator registers every function at once, each on a connection
/// of its own. Those beyond wait to be accepted: more at once would keep the streams of nodes and data planes waiting.
pub(crate) const API_CONNECTIONS_DIRIGENT_MAX: usize = 2_048;
/// Connections to the API that wait to be accepted. The system may allow fewer (`net.core.somaxconn`).
pub(crate) const API_BACKLOG: u32 = 4_096;
/// Time for the head of a request.
pub(crate) const API_HEAD_TIMEOUT: Duration = Duration::from_secs(10);
/// How long a connection to the API may ask for nothing.
pub(crate) const API_IDLE_TIMEOUT: Duration = Duration::from_secs(30);
/// Time for a JSON body, and for the next piece of a blob.
pub(crate) const API_BODY_TIMEOUT: Duration = Duration::from_secs(30);
/// Time that open requests have when the control plane stops.
pub(crate) const API_DRAIN_TIMEOUT: Duration = Duration::from_secs(2);
/// Functions on one page.
pub(crate) const LIST_LIMIT_MAX: u32 = 1_000;
/// Functions on one page unless the caller says otherwise.
pub(crate) const LIST_LIMIT_DEFAULT: u32 = 100;
/// Blobs that are uploaded at once; the next one waits.
pub(crate) const UPLOADS_MAX: usize = 8;
/// Time that an upload may wait for its turn.
pub(crate) const UPLOAD_WAIT: Duration = Duration::from_secs(30);
/// Time that one upload may take in all: the place that it holds is one of [`UPLOADS_MAX`].
pub(crate) const UPLOAD_TIMEOUT: Duration = Duration::from_secs(600);
/// Bytes of a blob in one read.
pub(crate) const BLOB_CHUNK_BYTES: usize = 256 << 10;

/// Nodes that have series of their own in the metrics.
pub(crate) const METRICS_NODES_MAX: usize = 500;
/// Questions about requests that data planes work on at once.
pub(crate) const QUESTIONS_MAX: usize = 64;
/// Time that data planes have to answer one.
pub(crate) const QUESTION_TIMEOUT: Duration = Duration::from_secs(2);

/// Requests for logs that are open at once.
pub(crate) const LOG_READERS_MAX: usize = 64;
/// Last lines of a log that may be asked for.
pub(crate) const LOG_TAIL_MAX: u32 = 10_000;
/// Last lines of a log unless the caller says otherwise.
pub(crate) const LOG_TAIL_DEFAULT: u32 = 100;
/// Lines between a node and a reader; then the node waits.
pub(crate) const LOG_QUEUE_LINES: usize = 256;
/// Time a node has to begin sending the lines it was asked for.
pub(crate) const LOG_NODE_TIMEOUT: Duration = Duration::from_secs(3);
