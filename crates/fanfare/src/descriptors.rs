//! How many files and sockets this process may have open.

use rustix::process::{Resource, Rlimit, getrlimit, setrlimit};

use crate::exit::Failure;

/// Descriptors for everything but the links of emulated nodes: what carries requests to their sandboxes, logs, and the
/// process itself.
const RESERVED: usize = 1_024;

/// Raises the soft limit to the hard one: each connection takes a descriptor, and the usual soft limit is meant for
/// programs that cannot count beyond it. Sandboxes have a limit of their own.
pub(crate) fn raise() {
    let limit = getrlimit(Resource::Nofile);
    if limit.current == limit.maximum {
        return;
    }
    let raised = Rlimit { current: limit.maximum, maximum: limit.maximum };
    if let Err(error) = setrlimit(Resource::Nofile, raised) {
        tracing::warn!(%error, current = ?limit.current, "cannot raise the limit of open files");
    }
}

/// Whether as many nodes can have a connection each.
///
/// # Errors
/// How many can, and what to raise for more.
pub(crate) fn suffice(nodes: usize) -> Result<(), Failure> {
    let limit = getrlimit(Resource::Nofile).current;
    fit(nodes, limit.map_or(usize::MAX, |limit| usize::try_from(limit).unwrap_or(usize::MAX)))
}

/// How many of `wanted` connections this process may have open, with some descriptors left for everything else.
pub(crate) fn connections(wanted: usize) -> usize {
    const RESERVED: usize = 64;
    let limit = getrlimit(Resource::Nofile).current.and_then(|limit| usize::try_from(limit).ok());
    wanted.min(limit.map_or(wanted, |limit| limit.saturating_sub(RESERVED).max(1)))
}

fn fit(nodes: usize, limit: usize) -> Result<(), Failure> {
    let room = limit.saturating_sub(RESERVED);
    if nodes <= room {
        return Ok(());
    }
    Err(Failure::usage(format!(
        "{nodes} nodes need {} open files, one connection each and {RESERVED} for the rest; the limit here is {limit}",
        nodes + RESERVED
    ))
    .next(format!("emulate up to {room}, or raise the hard limit (`ulimit -Hn`, or LimitNOFILE= of a service)")))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn nodes_fit_or_are_told_how_many_would() {
        for (nodes, limit) in [(5_000, 20_000), (18_976, 20_000), (20_000, usize::MAX)] {
            assert!(fit(nodes, limit).is_ok(), "{nodes} of {limit}");
        }
        for (nodes, limit, room) in [(18_977, 20_000, "up to 18976"), (1, 1_024, "up to 0")] {
            let failure = fit(nodes, limit).unwrap_err();
            assert!(failure.what.contains(&limit.to_string()), "{failure}");
            assert!(failure.next.as_deref().is_some_and(|next| next.contains(room)), "{:?}", failure.next);
        }
    }
}
