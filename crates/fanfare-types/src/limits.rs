//! Every limit of the system that is not a setting of one function, in one place.
//!
//! Each has the reason code that a caller sees when it is reached, where there is a caller.

use std::time::Duration;

/// Characters in a function's name: a DNS label.
pub const FUNCTION_NAME_LEN_MAX: usize = 63;
/// Characters in a tag: with a function's name and what is between them it is a DNS label where both are short.
pub const TAG_LEN_MAX: usize = 30;
/// Tags of one function.
pub const TAGS_MAX: usize = 16;
/// Revisions among which a function's requests are shared.
pub const SHARES_MAX: usize = 8;
/// Functions one control plane keeps.
pub const FUNCTIONS_MAX: usize = 1_000_000;
/// Slots of one sandbox, as Knative's `containerConcurrency`.
pub const CONCURRENCY_MAX: u32 = 1_000;
/// Sandboxes of one function.
pub const SCALE_MAX: u32 = 100_000;
/// Requests that may wait for one function on one data plane.
pub const QUEUE_LIMIT_MAX: u32 = 1_000_000;
/// Requests that may wait for one function on one data plane, unless it says otherwise.
pub const QUEUE_LIMIT_DEFAULT: u32 = 10_000;
/// One client address (of IPv6: its network of 64 bits) may have this part of a function's queue limit waiting in requests
/// whose bodies are not here to their end: a quarter.
pub const UPLOADS_WAITING_SHARE: u32 = 4;
/// At least so many of them, however short the queue.
pub const UPLOADS_WAITING_MIN: u32 = 16;
/// Environment variables of one function.
pub const ENV_VARS_MAX: usize = 256;
/// Bytes of all names and values of one function's environment.
pub const ENV_BYTES_MAX: usize = 32 * 1024;
/// Secrets that one control plane keeps.
pub const SECRETS_MAX: usize = 1_000;
/// Bytes of one secret's value.
pub const SECRET_BYTES_MAX: usize = 64 * 1024;
/// Secrets that one function may use.
pub const SECRETS_PER_FUNCTION_MAX: usize = 64;
/// Bytes of all names and values of the secrets that one function has in its environment.
pub const SECRET_ENV_BYTES_MAX: usize = 32 * 1024;
/// Characters of the name under which a function finds a secret.
pub const SECRET_PLACE_LEN_MAX: usize = 128;
/// Configuration files of one function.
pub const FILES_MAX: usize = 64;
/// Bytes of one configuration file.
pub const FILE_BYTES_MAX: usize = 64 * 1024;
/// Bytes of all configuration files of one function: a revision is one value in the store.
pub const FILES_BYTES_MAX: usize = 256 * 1024;
/// Characters of a configuration file's path.
pub const FILE_PATH_LEN_MAX: usize = 255;
/// Directories and file in that path.
pub const FILE_PATH_PARTS_MAX: usize = 8;
/// Arguments of a function's command.
pub const COMMAND_ARGS_MAX: usize = 256;
/// Bytes of all arguments of a function's command.
pub const COMMAND_BYTES_MAX: usize = 32 * 1024;
/// Characters of a handler's file path, and of its name.
pub const HANDLER_LEN_MAX: usize = 1_024;
/// Characters of an amount with a unit, such as `128MiB`.
pub const QUANTITY_LEN_MAX: usize = 64;
/// Bytes of one function's code, packed.
pub const CODE_BYTES_MAX: u64 = 256 << 20;
/// Bytes of one installation of a function's dependencies.
pub const DEPS_BYTES_MAX: u64 = 4 << 30;
/// Bytes of installed dependencies that a node keeps, unless it says otherwise.
pub const DEPS_BYTES_KEPT_DEFAULT: u64 = 10 << 30;
/// Bytes of a JSON body on the control API.
pub const API_BODY_BYTES_MAX: usize = 1 << 20;
/// Bytes of a form on the control API: a function's whole environment and arguments, however they are escaped.
pub const FORM_BYTES_MAX: usize = 256 << 10;
/// Fields of a form on the control API.
pub const FORM_FIELDS_MAX: usize = 1_024;
/// Images that forms may name.
pub const IMAGES_MAX: usize = 256;
/// Characters of an image's name.
pub const IMAGE_NAME_LEN_MAX: usize = 512;
/// Bytes of a request head that the data plane reads: 64 KiB of headers and the request line.
pub const REQUEST_HEAD_BYTES_MAX: usize = 96 * 1024;
/// Header fields of a request of HTTP/1.1.
pub const REQUEST_FIELDS_MAX: usize = 100;
/// Header fields of any other request, and of a response.
pub const HEADERS_MAX: usize = 256;
/// Lines of a sandbox's log that travel with a failure.
pub const LOG_TAIL_LINES: usize = 20;
/// Bytes of a sandbox's log that travel with a failure.
pub const LOG_TAIL_BYTES: usize = 4 * 1024;
/// Bytes of the sentence that describes a failed request.
pub const FAILURE_DETAIL_BYTES_MAX: usize = 512;
/// Kinds of failed requests that a data plane tells the control plane of per report; the rest follow with the next ones.
pub const FAILURES_PER_REPORT_MAX: usize = 256;
/// Requests that a data plane remembers for `explain`: those that waited, were cold, refused, cut, left or slow. The oldest
/// make way.
pub const REQUESTS_REMEMBERED_MAX: usize = 8_192;
/// Of all the others, which got a slot at once and an answer soon, the last so many.
pub const REQUESTS_REMEMBERED_WARM_MAX: usize = 8_192;
/// A request that took longer is remembered among the former.
pub const REQUEST_SLOW: Duration = Duration::from_secs(1);
/// Requests of the same id that one data plane tells of.
pub const REQUESTS_EXPLAINED_MAX: usize = 16;
/// Orders of sandboxes that the control plane remembers with their reasons.
pub const ORDERS_REMEMBERED_MAX: usize = 16_384;
/// Bytes of the body of a call that the control plane has a data plane accept.
pub const ENTRUSTED_BODY_BYTES_MAX: usize = 1 << 20;
/// Calls that one data plane accepts for the control plane at once; more are refused.
pub const ENTRUSTED_MAX: usize = 256;
/// Attempts of an asynchronous invocation that may fail, at most.
pub const ATTEMPTS_MAX: u32 = 100;
/// How long after it was accepted an attempt of an asynchronous invocation may still begin, at most.
pub const CALL_AGE_MAX: Duration = Duration::from_secs(7 * 24 * 3_600);
/// Webhooks that one control plane keeps.
pub const WEBHOOKS_MAX: usize = 1_000;
/// How far the time of a webhook's signature may be from now, unless the webhook says otherwise.
pub const WEBHOOK_TOLERANCE_DEFAULT: Duration = Duration::from_secs(300);
/// The least that a webhook may say.
pub const WEBHOOK_TOLERANCE_MIN: Duration = Duration::from_secs(1);
/// The most that a webhook may say: for so long a signed request can be sent again by whoever has it.
pub const WEBHOOK_TOLERANCE_MAX: Duration = Duration::from_secs(24 * 3_600);
/// Schedules that one control plane keeps.
pub const SCHEDULES_MAX: usize = 10_000;
/// Bytes of all schedules together, as they are stored.
pub const SCHEDULES_BYTES_MAX: usize = 256 << 20;
/// Bytes of the body that a schedule calls its function with.
pub const SCHEDULE_BODY_BYTES_MAX: usize = 64 << 10;
/// Header fields that a schedule calls its function with.
pub const SCHEDULE_HEADERS_MAX: usize = 32;
/// Bytes of all of them.
pub const SCHEDULE_HEADERS_BYTES_MAX: usize = 8 << 10;
/// Characters of the path, with its query, that a schedule calls.
pub const SCHEDULE_PATH_LEN_MAX: usize = 2_048;
/// Characters of a request's id that a client may choose.
pub const REQUEST_ID_LEN_MAX: usize = 128;
/// Bytes of logs a node keeps for one function before the oldest are dropped.
pub const LOG_BYTES_PER_FUNCTION: u64 = 8 << 20;
/// Messages between two roles that may wait for the wire; beyond it the stream is cut and resynced.
pub const LINK_QUEUE_MESSAGES_MAX: usize = 65_536;
/// Bytes of messages between two roles that may wait for the wire; beyond it the stream is cut and resynced.
pub const LINK_QUEUE_BYTES_MAX: usize = 256 << 20;
/// Messages in one batch on the wire.
pub const LINK_BATCH_MESSAGES_MAX: usize = 1_024;
/// Bytes of one batch on the wire.
pub const LINK_BATCH_BYTES_MAX: usize = 16 << 20;
/// Bytes of a node's or a data plane's name.
pub const PEER_NAME_BYTES_MAX: usize = 253;
/// How often a data plane or a node says that it lives when it has nothing else to say.
pub const HEARTBEAT_INTERVAL: Duration = Duration::from_millis(200);
/// Silence after which a data plane or a node counts as lost. A broken stream counts as silence from then on. Parts of
/// one process are not asked to say that they live: there only the end of a stream counts.
pub const LIVENESS_TIMEOUT: Duration = Duration::from_millis(1_000);
/// How often a data plane reports the load of its active functions.
pub const REPORT_INTERVAL: Duration = Duration::from_secs(1);
/// How often the autoscaler decides for active functions (Knative's tick).
pub const AUTOSCALER_TICK: Duration = Duration::from_secs(2);
/// Creations of one revision that may fail in a row before its waiting requests are answered with the reason.
pub const START_FAILURES_BEFORE_REFUSAL: u32 = 1;
/// First pause before another attempt after a failed creation; doubles to the maximum.
pub const START_BACKOFF_MIN: Duration = Duration::from_millis(100);
/// Longest pause between attempts after failed creations.
pub const START_BACKOFF_MAX: Duration = Duration::from_secs(10);
/// Grace between SIGTERM and SIGKILL of an idle sandbox.
pub const STOP_GRACE: Duration = Duration::from_millis(500);
/// How long an answer that nobody waits for any more is read on before its sandbox is condemned, where that has several
/// slots; the function is to know within a second that its client has left.
pub const ABANDONED_WAIT_DEFAULT: Duration = Duration::from_millis(500);
/// Bytes of such an answer that are read.
pub const ABANDONED_BYTES_MAX: usize = 1 << 20;
/// Longest time that a data plane lets in-flight requests finish when it shuts down.
pub const DRAIN_TIMEOUT_DEFAULT: Duration = Duration::from_secs(30);

/// What a sandbox reserves unless its function says otherwise.
pub const MEMORY_REQUEST_DEFAULT_BYTES: u64 = 16 << 20;
/// What a sandbox reserves unless its function says otherwise.
pub const CPU_REQUEST_DEFAULT_MILLI: u64 = 10;
/// What a sandbox may use at most unless its function says otherwise.
pub const MEMORY_LIMIT_DEFAULT_BYTES: u64 = 128 << 20;
/// Smallest memory limit that starts an interpreter.
pub const MEMORY_LIMIT_MIN_BYTES: u64 = 8 << 20;
/// Largest memory limit of one sandbox.
pub const MEMORY_LIMIT_MAX_BYTES: u64 = 1 << 40;
/// Least memory that a node may offer: that of one sandbox.
pub const NODE_MEMORY_MIN_BYTES: u64 = MEMORY_LIMIT_MIN_BYTES;
/// Most memory that a node may offer.
pub const NODE_MEMORY_MAX_BYTES: u64 = 256 << 40;
/// Most CPUs that a node may offer.
pub const NODE_CPU_MAX_MILLI: u64 = 65_536_000;
/// Least that a node may keep of installed dependencies: less holds none.
pub const DEPS_BYTES_KEPT_MIN: u64 = 1 << 20;
/// Most that a node may keep of them.
pub const DEPS_BYTES_KEPT_MAX: u64 = 256 << 40;
/// Processes and threads of one sandbox unless its function says otherwise.
pub const PIDS_LIMIT_DEFAULT: u32 = 128;
/// Bytes of a sandbox's private `/tmp` unless its function says otherwise.
pub const TMP_LIMIT_DEFAULT_BYTES: u64 = 64 << 20;
/// Largest CPU request or limit of one sandbox.
pub const CPU_MAX_MILLI: u64 = 1_024_000;
/// Smallest CPU limit that the kernel enforces: 1 ms in each 100 ms.
pub const CPU_LIMIT_MIN_MILLI: u64 = 10;
/// Fewest processes and threads that an interpreter with its shim needs.
pub const PIDS_LIMIT_MIN: u32 = 4;
/// Most processes and threads of one sandbox.
pub const PIDS_LIMIT_MAX: u32 = 32_768;
/// Smallest private `/tmp`.
pub const TMP_LIMIT_MIN_BYTES: u64 = 64 << 10;
/// Largest private `/tmp`.
pub const TMP_LIMIT_MAX_BYTES: u64 = 64 << 30;
/// Shortest timeout of a function: the resolution of the deadlines.
pub const TIMEOUT_MIN: Duration = Duration::from_millis(1);
/// Longest time a sandbox may be given to become ready.
pub const START_TIMEOUT_MAX: Duration = Duration::from_secs(3_600);
/// Longest window, delay or period of a scaling policy, as Knative's.
pub const SCALING_WINDOW_MAX: Duration = Duration::from_secs(3_600);
/// Shortest window of a scaling policy.
pub const SCALING_WINDOW_MIN: Duration = Duration::from_millis(100);
/// Shortest time between two decisions of a scaling policy.
pub const SCALING_TICK_MIN: Duration = Duration::from_millis(10);
/// Largest target, threshold or rate of a scaling policy.
pub const SCALING_FACTOR_MAX: f64 = 1e6;
/// Time a sandbox has to become ready unless its function says otherwise.
pub const START_TIMEOUT_DEFAULT: Duration = Duration::from_secs(30);
/// Time an invocation has, queueing included, unless its function says otherwise.
pub const REQUEST_TIMEOUT_DEFAULT: Duration = Duration::from_secs(60);
/// Longest time an invocation may be given.
pub const REQUEST_TIMEOUT_MAX: Duration = Duration::from_secs(24 * 3600);
