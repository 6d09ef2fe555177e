//! What may travel on a link, and how much room it takes.

use fanfare_types::{
    EntrustedCall, FromDataPlane, FromNode, FunctionRoute, Reach, RequestRecord, RevisionSpec, SecretName,
    SecretUse, SecretValue, ToDataPlane, ToNode,
};

/// A message of a link: one of the four enums of `fanfare-types`.
pub trait Message: sealed::Sealed + std::fmt::Debug + Send + 'static {
    /// An upper bound of its bytes on the wire.
    fn weight_bytes(&self) -> usize;

    /// The same as several messages of at most `limit_bytes` each, where its meaning allows that and it is larger;
    /// otherwise itself.
    #[must_use]
    fn split(self, limit_bytes: usize) -> Vec<Self>
    where
        Self: Sized;
}

mod sealed {
    pub trait Sealed {}
    impl Sealed for fanfare_types::ToNode {}
    impl Sealed for fanfare_types::FromNode {}
    impl Sealed for fanfare_types::ToDataPlane {}
    impl Sealed for fanfare_types::FromDataPlane {}
}

/// Covers the tags, lengths and numbers of any message without lists and texts.
const FIXED: usize = 128;
/// Covers the tag and the length of one text.
const TEXT: usize = 8;
/// Covers one record of a list, without its texts.
const RECORD: usize = 64;

fn text(s: &str) -> usize {
    TEXT + s.len()
}

fn route(route: &FunctionRoute) -> usize {
    let reach = match &route.reach {
        Reach::Named | Reach::Unit => 0,
        Reach::Shared(traffic) => {
            let tags: usize = traffic.tags.iter().map(|(tag, _)| TEXT + text(tag.as_str())).sum();
            traffic.shares.len() * 2 * TEXT + tags
        }
    };
    RECORD + text(route.name.as_str()) + reach
}

fn revision(spec: &RevisionSpec) -> usize {
    use fanfare_types::Contract;
    let contract = match &spec.contract {
        Contract::Python { file, handler } | Contract::Node { file, handler } => text(file) + text(handler),
        Contract::Http { command, .. } => command.iter().map(|argument| text(argument)).sum(),
        Contract::Fake => 0,
    };
    let env: usize = spec.env.iter().map(|(name, value)| TEXT + text(name) + text(value)).sum();
    let used = |used: &SecretUse| TEXT + text(used.secret.as_str()) + text(used.place.name());
    let secrets: usize = spec.given.secrets.iter().map(used).sum();
    let files: usize =
        spec.given.files.iter().map(|file| 2 * TEXT + text(&file.path) + file.content.len()).sum();
    2 * FIXED + text(spec.name.as_str()) + text(&spec.runtime) + contract + env + secrets + files
}

fn entrusted(call: &EntrustedCall) -> usize {
    let headers: usize = call.headers.iter().map(|(name, value)| TEXT + text(name) + text(value)).sum();
    let texts = text(call.function.as_str()) + text(&call.method) + text(&call.target) + text(&call.key);
    texts + headers + TEXT + call.body.len()
}

impl Message for ToNode {
    fn weight_bytes(&self) -> usize {
        match self {
            ToNode::Revision(spec) => FIXED + revision(spec),
            ToNode::Secrets { values, .. } => {
                let value = |(name, value): &(SecretName, SecretValue)| {
                    2 * TEXT + text(name.as_str()) + value.expose().len()
                };
                FIXED + values.iter().map(value).sum::<usize>()
            }
            ToNode::Welcome { .. }
            | ToNode::RevisionRemoved(_)
            | ToNode::Prepare(_)
            | ToNode::Create { .. }
            | ToNode::Hasten(_)
            | ToNode::Stop { .. }
            | ToNode::Logs { .. } => FIXED,
        }
    }

    fn split(self, _limit_bytes: usize) -> Vec<Self> {
        vec![self]
    }
}

impl Message for FromNode {
    fn weight_bytes(&self) -> usize {
        match self {
            FromNode::Hello(hello) => {
                let runtimes: usize = hello.runtimes.iter().map(|runtime| text(runtime)).sum();
                let sandboxes: usize = hello
                    .sandboxes
                    .iter()
                    .map(|record| RECORD + record.endpoint.as_deref().map_or(0, text))
                    .sum();
                FIXED + text(&hello.name) + runtimes + sandboxes
            }
            FromNode::Ready { endpoint, .. } => FIXED + text(endpoint),
            FromNode::Failed { failure, .. } => FIXED + text(&failure.detail) + text(&failure.log_tail),
            FromNode::Exited { cause, .. } => FIXED + text(&cause.log_tail),
            FromNode::Prepared { failure, .. } => {
                FIXED + failure.as_ref().map_or(0, |f| text(&f.detail) + text(&f.log_tail))
            }
            FromNode::Usage(list) => FIXED + list.len() * RECORD,
            FromNode::Left | FromNode::Heartbeat => FIXED,
        }
    }

    fn split(self, limit_bytes: usize) -> Vec<Self> {
        match self {
            FromNode::Usage(list) => split_list(list, limit_bytes, |_| RECORD, FromNode::Usage),
            other => vec![other],
        }
    }
}

impl Message for ToDataPlane {
    fn weight_bytes(&self) -> usize {
        match self {
            ToDataPlane::Functions(list) => FIXED + list.iter().map(route).sum::<usize>(),
            ToDataPlane::Peers(list) => {
                FIXED + list.iter().map(|(_, address)| RECORD + text(address)).sum::<usize>()
            }
            ToDataPlane::Owners(list) => FIXED + list.len() * RECORD,
            ToDataPlane::Grant { endpoint, .. } => FIXED + text(endpoint),
            ToDataPlane::Gone { cause, .. } => FIXED + text(&cause.log_tail),
            ToDataPlane::Unavailable { detail, log_tail, .. } => FIXED + text(detail) + text(log_tail),
            ToDataPlane::Welcome { .. }
            | ToDataPlane::FunctionRemoved(_)
            | ToDataPlane::Synced
            | ToDataPlane::WebhooksSynced
            | ToDataPlane::Mark(_)
            | ToDataPlane::Revoke { .. }
            | ToDataPlane::Retire { .. }
            | ToDataPlane::Yield { .. } => FIXED,
            ToDataPlane::Explain { request_id, .. } => FIXED + text(request_id),
            ToDataPlane::Entrust { call, .. } => FIXED + entrusted(call),
            ToDataPlane::Webhook(route) => {
                let spec = &route.spec;
                let texts =
                    text(spec.name.as_str()) + text(spec.function.as_str()) + text(spec.secret.as_str());
                FIXED + texts + route.key.as_ref().map_or(0, |key| TEXT + key.expose().len())
            }
            ToDataPlane::WebhookRemoved(name) => FIXED + text(name.as_str()),
        }
    }

    // `Peers` is an absolute statement: in parts it would say something else.
    fn split(self, limit_bytes: usize) -> Vec<Self> {
        match self {
            ToDataPlane::Functions(list) => split_list(list, limit_bytes, route, ToDataPlane::Functions),
            ToDataPlane::Owners(list) => split_list(list, limit_bytes, |_| RECORD, ToDataPlane::Owners),
            other => vec![other],
        }
    }
}

impl Message for FromDataPlane {
    fn weight_bytes(&self) -> usize {
        match self {
            FromDataPlane::Hello(hello) => {
                FIXED
                    + text(&hello.name)
                    + text(&hello.address)
                    + (hello.leases.len() + hello.condemned.len()) * RECORD
            }
            FromDataPlane::Report(list) => FIXED + list.len() * RECORD,
            FromDataPlane::Failed(failures) => {
                FIXED + text(&failures.detail) + text(&failures.request_id) + text(&failures.log_tail)
            }
            FromDataPlane::Explained { records, .. } => {
                let texts = |r: &RequestRecord| text(&r.request_id) + text(&r.name) + text(&r.detail);
                FIXED + records.iter().map(|record| 4 * RECORD + texts(record)).sum::<usize>()
            }
            FromDataPlane::Entrusted { outcome, .. } => match outcome {
                Ok(id) => FIXED + text(id),
                Err(refusal) => FIXED + text(&refusal.detail),
            },
            FromDataPlane::Demand(_)
            | FromDataPlane::Released { .. }
            | FromDataPlane::Condemned { .. }
            | FromDataPlane::Reached(_)
            | FromDataPlane::Draining
            | FromDataPlane::Left
            | FromDataPlane::Heartbeat => FIXED,
        }
    }

    // A `Report` says that what it leaves out is idle: it cannot be split.
    fn split(self, _limit_bytes: usize) -> Vec<Self> {
        vec![self]
    }
}

/// Cuts `list` into runs of at most `limit_bytes`, each at least one element long.
fn split_list<T, M>(
    list: Vec<T>,
    limit_bytes: usize,
    weight: impl Fn(&T) -> usize,
    message: impl Fn(Vec<T>) -> M,
) -> Vec<M> {
    if FIXED + list.iter().map(&weight).sum::<usize>() <= limit_bytes {
        return vec![message(list)];
    }
    let mut messages = Vec::new();
    let mut run = Vec::new();
    let mut bytes = FIXED;
    for element in list {
        let more = weight(&element);
        if bytes + more > limit_bytes && !run.is_empty() {
            messages.push(message(std::mem::take(&mut run)));
            bytes = FIXED;
        }
        bytes += more;
        run.push(element);
    }
    messages.push(message(run));
    messages
}

#[cfg(test)]
mod tests {
    use super::*;
    use fanfare_types::{DataPlaneId, FunctionId};

    #[test]
    fn lists_split_in_order_and_nothing_is_lost() {
        let all: Vec<_> = (0..1_000).map(|n| (FunctionId(n), Some(DataPlaneId(n)))).collect();
        for limit in [1, FIXED + RECORD, 1_000, 10_000, 1 << 20] {
            let mut joined = Vec::new();
            for part in ToDataPlane::Owners(all.clone()).split(limit) {
                assert!(part.weight_bytes() <= limit.max(FIXED + RECORD), "{limit}");
                let ToDataPlane::Owners(list) = part else { panic!("another message") };
                assert!(!list.is_empty());
                joined.extend(list);
            }
            assert_eq!(joined, all, "{limit}");
        }
        assert_eq!(ToDataPlane::Owners(Vec::new()).split(1_000).len(), 1);
    }
}
