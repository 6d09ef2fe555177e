//! Load, written down before it is made.
//!
//! A [`Plan`] says of every invocation when it is due, which function it calls, and how much time and memory it asks for.
//! Whoever replays it (against a real system, or in virtual time) has nothing left to decide, so that two replays of one
//! plan are the same load.
//!
//! [`Trace::read`] takes the files of the Azure Functions trace (Shahrad et al., USENIX ATC 2020) in the layout that the
//! load generator InVitro (Ustiugov et al., WORDS 2023) reads and Dirigent's experiments use. [`schedule()`] makes a plan of
//! it by InVitro's rules. [`steady()`] makes one of a rate.
//!
//! Nothing here opens a file, knows the time, or draws from anything but the seed that it is given.

mod arrivals;
mod azure;
mod error;
mod plan;
mod plan_file;
mod quantiles;
mod schedule;
mod steady;
mod streams;
mod table;

pub use arrivals::Gaps;
pub use azure::{AzureFiles, Repairs, ScaleBounds, Trace, TraceFunction};
pub use error::TraceError;
pub use plan::{Invocation, Plan, PlanFunction};
pub use quantiles::Quantiles;
pub use schedule::{Granularity, ScheduleOptions, schedule};
pub use steady::{Steady, SteadyOptions, steady};

/// Bytes of one file of a trace.
pub const TRACE_BYTES_MAX: u64 = 128 << 20;
/// Bytes of a plan's file.
pub const PLAN_BYTES_MAX: u64 = 256 << 20;
/// Functions of a trace, and of a plan.
pub const FUNCTIONS_MAX: usize = 50_000;
/// Columns of a trace: minutes of two weeks.
pub const COLUMNS_MAX: usize = 14 * 24 * 60;
/// Invocations of a plan.
pub const INVOCATIONS_MAX: usize = 5_000_000;
/// Bytes of a function's name.
pub const NAME_BYTES_MAX: usize = 128;
/// Longest span of a plan: two weeks.
pub const SPAN_US_MAX: u64 = 14 * 24 * 3_600 * 1_000_000;
/// Shortest execution that is asked for, as InVitro has it …
pub const EXECUTION_MS_MIN: u32 = 1;
/// … and the longest.
pub const EXECUTION_MS_MAX: u32 = 60_000;
/// Least memory that is asked for, as InVitro has it …
pub const MEMORY_MIB_MIN: u32 = 1;
/// … and the most.
pub const MEMORY_MIB_MAX: u32 = 10_240;
/// Largest factor by which rates and durations are scaled; the smallest is its inverse.
pub const SCALE_MAX: f64 = 1_000.0;
/// Most invocations a second of a plan.
pub const RATE_MAX: f64 = 100_000.0;
/// Sandboxes that a function begins with at most, after which the platform's own scaling goes on.
pub const INITIAL_MAX: u32 = 1_000;
