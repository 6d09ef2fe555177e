//! What the engine's task takes.

use std::sync::Arc;

use fanfare_engine::liveness::Pulse;
use fanfare_engine::{DataPlaneStatus, FunctionStatus, Order};
use fanfare_link::Sender;
use fanfare_types::{
    DataPlaneHello, DataPlaneId, EntrustedCall, FromDataPlane, FromNode, FunctionId, FunctionName,
    FunctionSpec, NodeHello, NodeId, RevisionId, SandboxId, StartFailure, Timestamp, ToDataPlane, ToNode,
    WebhookSpec,
};
use tokio::sync::oneshot;

use crate::entrusting::Entrusted;
use crate::questions::Asked;
use crate::registry::Visible;
use crate::view::{ClusterView, NodeRef};

/// Something for the engine's task, by the queue that all of it shares: what was sent first is taken first.
#[derive(Debug)]
pub(crate) enum Input {
    Function(Visible),
    NodeConnected {
        node: NodeId,
        hello: NodeHello,
        stream: u64,
        tx: Sender<ToNode>,
        pulse: Arc<Pulse>,
    },
    FromNode {
        node: NodeId,
        stream: u64,
        messages: Vec<FromNode>,
    },
    NodeClosed {
        node: NodeId,
        stream: u64,
    },
    DataPlaneConnected {
        data_plane: DataPlaneId,
        hello: DataPlaneHello,
        stream: u64,
        tx: Sender<ToDataPlane>,
        pulse: Arc<Pulse>,
    },
    FromDataPlane {
        data_plane: DataPlaneId,
        stream: u64,
        messages: Vec<FromDataPlane>,
        received: Timestamp,
    },
    DataPlaneClosed {
        data_plane: DataPlaneId,
        stream: u64,
    },
    /// Prove that a revision starts.
    Prepare {
        revision: RevisionId,
        spec: Arc<FunctionSpec>,
        answer: oneshot::Sender<Prepared>,
    },
    /// Answer once every connected data plane has taken in all that was put into this queue before.
    Barrier {
        answer: oneshot::Sender<()>,
    },
    /// Answer once the last change of this function's traffic has taken effect.
    Switched {
        function: FunctionId,
        answer: oneshot::Sender<()>,
    },
    /// Have nodes send log lines.
    TellNodes(Vec<(NodeRef, ToNode)>),
    /// How functions stand, in the order of `ids`: in full, or as an overview.
    Functions {
        in_full: bool,
        ids: Vec<FunctionId>,
        answer: oneshot::Sender<(Timestamp, Vec<Option<FunctionStatus>>)>,
    },
    /// Have data planes know of a change of a webhook.
    Webhook(WebhookNews),
    /// Have a data plane accept a call.
    Entrust {
        data_plane: DataPlaneId,
        call: Arc<EntrustedCall>,
        answer: oneshot::Sender<Entrusted>,
    },
    /// What data planes remember of a request; the answer is dropped where too many ask.
    Explain {
        request_id: Arc<str>,
        answer: oneshot::Sender<Asked>,
    },
    /// Why these sandboxes were ordered, in this order, as far as it is remembered.
    Orders {
        sandboxes: Vec<SandboxId>,
        answer: oneshot::Sender<Vec<Option<Order>>>,
    },
    Cluster {
        answer: oneshot::Sender<ClusterView>,
    },
    Nodes {
        answer: oneshot::Sender<Vec<NodeRef>>,
    },
    /// Which data planes take requests, at a cost that does not depend on how much else there is.
    DataPlanes {
        answer: oneshot::Sender<Vec<DataPlaneStatus>>,
    },
}

/// Answer to [`Input::Prepare`]: the node that proved it.
pub(crate) type Prepared = Result<Arc<str>, StartFailure>;

/// What data planes are to know of a webhook.
#[derive(Clone, Debug)]
pub(crate) enum WebhookNews {
    Set(Arc<WebhookSpec>),
    Removed(FunctionName),
}
