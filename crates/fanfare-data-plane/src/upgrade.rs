//! Connections that change their protocol: WebSocket and its like.

use std::rc::Rc;

use fanfare_dispatch::Outcome;
use http::header::{CONNECTION, HeaderMap, HeaderName, HeaderValue, UPGRADE};
use http::{Extensions, Version};
use hyper::upgrade::OnUpgrade;
use hyper_util::rt::TokioIo;
use tokio::io::{AsyncWriteExt, copy_bidirectional};
use tokio_util::task::TaskTracker;

use crate::body::{Held, Upstream};
use crate::clock;
use crate::lease::Lease;
use crate::progress::{self, Moving};
use crate::proof;

/// A client's wish to speak another protocol after the answer.
pub(crate) struct Upgrade {
    pub(crate) protocol: HeaderValue,
    client: OnUpgrade,
}

impl Upgrade {
    /// Takes the wish out of a request, if there is one that a sandbox could grant. HTTP/2 by upgrade is not: who
    /// wants it here begins with it.
    pub(crate) fn take(version: Version, headers: &HeaderMap, extensions: &mut Extensions) -> Option<Self> {
        let protocol = headers.get(UPGRADE)?;
        // One among others is enough: the sandbox could choose it, and requests in it would pass unseen.
        if version != Version::HTTP_11
            || !lists(headers, CONNECTION, b"upgrade")
            || lists(headers, UPGRADE, b"h2c")
        {
            return None;
        }
        Some(Upgrade { protocol: protocol.clone(), client: extensions.remove::<OnUpgrade>()? })
    }

    /// Joins the client and the sandbox, which agreed with 101, until both have finished or the request's deadline;
    /// `fields` are those of the answer, and `agreed` is the protocol that the sandbox named. The slot stays taken
    /// meanwhile.
    pub(crate) fn join(
        self,
        tasks: &TaskTracker,
        sandbox: Upstream,
        lease: Rc<Lease>,
        held: Held,
        fields: &mut HeaderMap,
        agreed: Option<HeaderValue>,
    ) {
        fields.insert(CONNECTION, HeaderValue::from_static("upgrade"));
        fields.insert(UPGRADE, agreed.unwrap_or(self.protocol));
        let deadline = lease.deadline;
        tokio::task::spawn_local(tasks.track_future(async move {
            let _held = held;
            let Some((mut sandbox, first)) = sandbox.into_upgraded() else {
                lease.fail(Outcome::Broken);
                return;
            };
            let (left, progress) = (deadline.since(clock::now()), lease.progress.clone());
            let both = async {
                let client = self.client.await.map_err(std::io::Error::other)?;
                let mut client = Moving { io: TokioIo::new(client), progress };
                client.write_all(&first).await?;
                copy_bidirectional(&mut client, &mut sandbox).await
            };
            let both = async {
                tokio::select! {
                    both = both => both,
                    () = lease.slot.upstream.clone().silent() => Err(std::io::ErrorKind::ConnectionAborted.into()),
                }
            };
            let outcome = match progress::within(left, lease.progress.as_ref(), both).await {
                // The sandbox has finished, too, and so has its connection.
                Ok(Ok(_)) => return lease.complete(None),
                Ok(Err(error)) => {
                    tracing::debug!(%error, "an upgraded connection broke");
                    Outcome::Abandoned
                }
                Err(_) => Outcome::TimedOut,
            };
            if !proof::pursue_upgraded(&lease, sandbox).await {
                lease.fail(outcome);
            }
        }));
    }
}

/// Whether this is a part of the list in these fields.
fn lists(headers: &HeaderMap, name: HeaderName, part: &[u8]) -> bool {
    let mut parts = headers.get_all(name).iter().flat_map(|value| value.as_bytes().split(|b| *b == b','));
    parts.any(|listed| listed.trim_ascii().eq_ignore_ascii_case(part))
}
