//! Defaults that depend on other settings.

use fanfare_api::{FunctionDocument, LimitsDocument};
use fanfare_types::FunctionSpec;

/// Leaves out the limits that are what they would be if nobody had given them, so that they follow those that they
/// depend on: a registered function has all of them, whoever chose them.
pub(crate) fn left_open(mut document: FunctionDocument) -> FunctionDocument {
    let limits: [fn(&mut LimitsDocument); 3] = [
        |limits| limits.tmp = None,
        |limits| limits.memory_request = None,
        |limits| limits.memory_limit = None,
    ];
    for leave_out in limits {
        let mut open = document.clone();
        leave_out(&mut open.limits);
        let spec = |document: &FunctionDocument| FunctionSpec::try_from(document.clone()).ok();
        if spec(&open).is_some_and(|open| Some(open) == spec(&document)) {
            document = open;
        }
    }
    document
}

#[cfg(test)]
mod tests {
    use fanfare_api::{HandlerDocument, Quantity};

    use super::*;

    fn mib(quantity: u64) -> Option<Quantity> {
        Some(Quantity::Integer(quantity << 20))
    }

    /// As the control plane answers it.
    fn registered(limits: LimitsDocument) -> FunctionDocument {
        let document = FunctionDocument { limits, ..FunctionDocument::new("f", HandlerDocument::Fake {}) };
        FunctionDocument::from(&FunctionSpec::try_from(document).unwrap())
    }

    #[test]
    fn a_default_that_depends_on_another_setting_follows_it() {
        let limits = |request, limit, tmp| LimitsDocument {
            memory_request: request,
            memory_limit: limit,
            tmp,
            ..LimitsDocument::default()
        };
        // What was given; the memory limit that is given now; what it comes to: request, limit, /tmp, in MiB.
        let cases = [
            (limits(None, None, None), None, (16, 128, 64)),
            (limits(None, mib(32), None), mib(128), (16, 128, 64)),
            (limits(None, mib(32), None), None, (16, 32, 16)),
            (limits(None, mib(8), None), mib(128), (16, 128, 64)),
            (limits(None, mib(32), mib(20)), mib(128), (16, 128, 20)),
            (limits(mib(200), None, None), None, (200, 200, 64)),
            (limits(mib(10), mib(64), mib(8)), mib(256), (10, 256, 8)),
            (limits(None, mib(256), None), mib(8), (8, 8, 4)),
        ];
        for (given, memory, expected) in cases {
            let mut document = left_open(registered(given.clone()));
            document.limits.memory_limit = memory.or(document.limits.memory_limit);
            let sizing = FunctionSpec::try_from(document).unwrap().sizing;
            let bytes = (sizing.request.memory_bytes, sizing.limit.memory_bytes, sizing.tmp_limit_bytes);
            assert_eq!((bytes.0 >> 20, bytes.1 >> 20, bytes.2 >> 20), expected, "{given:?}");
        }
    }
}
