//! The functions of a plan, as they are registered.

use std::time::Duration;

use fanfare_api::{FunctionDocument, Quantity};
use fanfare_trace::{Plan, PlanFunction};
use fanfare_types::{FunctionName, limits};

/// Characters of the trace's name in the function's.
const NAME_PART: usize = 12;
/// Memory beside what a request asks for: the program itself.
const PROGRAM_MEMORY_MIB: u64 = 64;

/// The most memory that an invocation of each function asks for, in MiB.
pub(crate) fn most_memory(plan: &Plan) -> Vec<u32> {
    let mut most = vec![0; plan.functions.len()];
    for invocation in &plan.invocations {
        let of_function = &mut most[invocation.function as usize];
        *of_function = invocation.memory_mib.max(*of_function);
    }
    most
}

/// A function's name at the platform: one that a trace could not give twice, and by which it is found in the trace.
pub(crate) fn name(prefix: &FunctionName, number: usize, of_trace: &str) -> String {
    let part: String = of_trace.chars().filter(char::is_ascii_alphanumeric).take(NAME_PART).collect();
    match part.is_empty() {
        true => format!("{prefix}-{number:05}"),
        false => format!("{prefix}-{number:05}-{}", part.to_ascii_lowercase()),
    }
}

/// Gives a function the memory and the scale that the plan says, within the `room_bytes` of a node.
pub(crate) fn fit(
    document: &mut FunctionDocument,
    function: &PlanFunction,
    most_memory_mib: u32,
    room_bytes: u64,
    timeout: Duration,
) {
    let bytes = |mib: u64| Quantity::Integer((mib << 20).min(room_bytes.max(1 << 20)));
    let reserved_mib = u64::from(function.memory_mib).max(1);
    document.limits.memory_request = Some(bytes(reserved_mib));
    let limit_mib = (u64::from(most_memory_mib) + PROGRAM_MEMORY_MIB).max(reserved_mib);
    document.limits.memory_limit = Some(Quantity::Integer(limit_mib << 20));
    document.timeouts.request = Some(Quantity::Text(format!("{}ms", timeout.as_millis())));
    document.scaling.min = (function.min > 0).then_some(function.min);
    document.scaling.max = (function.max > 0).then_some(function.max.min(limits::SCALE_MAX));
    document.scaling.initial = (function.initial > 0).then_some(function.initial);
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn names_are_functions_and_each_is_another() {
        let prefix = FunctionName::new("load").unwrap();
        let of = |number, of_trace| name(&prefix, number, of_trace);
        assert_eq!(of(7, "1948876d67f73860a97e6a6f57dad339"), "load-00007-1948876d67f7");
        assert_eq!(of(49_999, "A_b.C"), "load-49999-abc");
        assert_eq!(of(0, "__"), "load-00000");
        let longest = FunctionName::new(&"p".repeat(32)).unwrap();
        assert!(FunctionName::new(&name(&longest, 49_999, &"f".repeat(128))).is_ok());
    }
}
