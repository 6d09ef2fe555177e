//! What goes in and what comes out.

use std::sync::Arc;

use fanfare_types::{
    DataPlaneHello, DataPlaneId, FromDataPlane, FromNode, FunctionId, FunctionName, FunctionSpec, NodeHello,
    NodeId, RevisionId, StartFailure, Timestamp, ToDataPlane, ToNode, Traffic,
};

/// Something that happened.
#[derive(Clone, Debug, PartialEq)]
pub enum Event {
    /// Time has passed; see [`crate::Engine::next_deadline`].
    Tick,
    /// A function is registered or updated, durably.
    FunctionSet {
        /// The function and its new revision.
        id: RevisionId,
        /// What it is.
        spec: Arc<FunctionSpec>,
    },
    /// A function was registered in an earlier term. What it was to start with then is not started again.
    FunctionKept {
        /// The function and its revision.
        id: RevisionId,
        /// What it is.
        spec: Arc<FunctionSpec>,
    },
    /// An earlier term found that this revision cannot start. For the reader: it is tried again when it is called.
    FailureKept {
        /// The revision.
        id: RevisionId,
        /// Why.
        failure: StartFailure,
    },
    /// An earlier revision is named by traffic or a tag, durably: it is run beside the latest one.
    UnitSet {
        /// The id of its own by which it is run, and its number among the function's revisions.
        id: RevisionId,
        /// What it is.
        spec: Arc<FunctionSpec>,
    },
    /// The same, in an earlier term.
    UnitKept {
        /// The id of its own by which it is run, and its number among the function's revisions.
        id: RevisionId,
        /// What it is.
        spec: Arc<FunctionSpec>,
    },
    /// A function's requests are to be shared so; `None`: all for the latest revision. Units come before.
    TrafficSet {
        /// The function.
        function: FunctionId,
        /// How.
        traffic: Option<Arc<Traffic>>,
    },
    /// They were shared so in an earlier term.
    TrafficKept {
        /// The function.
        function: FunctionId,
        /// How.
        traffic: Arc<Traffic>,
    },
    /// A function is deleted, durably; or a unit is no longer named.
    FunctionRemoved(FunctionId),
    /// Somebody wants to know whether this revision of a function can start, be it the current one or another.
    PrepareRequested {
        /// The revision.
        id: RevisionId,
        /// What it is.
        spec: Arc<FunctionSpec>,
    },
    /// A node's stream began with this hello. Replaces an earlier stream of the node.
    NodeConnected {
        /// The node.
        node: NodeId,
        /// What it states.
        hello: NodeHello,
    },
    /// A node was silent for too long.
    NodeLost(NodeId),
    /// A node said something.
    FromNode {
        /// The node.
        node: NodeId,
        /// What it said.
        message: FromNode,
    },
    /// A data plane's stream began with this hello. Replaces an earlier stream of the data plane.
    DataPlaneConnected {
        /// The data plane.
        data_plane: DataPlaneId,
        /// What it states.
        hello: DataPlaneHello,
    },
    /// A data plane was silent for too long.
    DataPlaneLost(DataPlaneId),
    /// A data plane said something.
    FromDataPlane {
        /// The data plane.
        data_plane: DataPlaneId,
        /// What it said.
        message: FromDataPlane,
        /// When it was received: the time until now counts as deciding.
        received: Timestamp,
    },
}

/// Something to do.
#[derive(Clone, Debug, PartialEq)]
pub enum Command {
    /// Tell a node.
    Node {
        /// The node.
        node: NodeId,
        /// What.
        message: ToNode,
    },
    /// Tell a data plane.
    DataPlane {
        /// The data plane.
        data_plane: DataPlaneId,
        /// What.
        message: ToDataPlane,
    },
    /// Answer to [`Event::PrepareRequested`].
    Prepared {
        /// The revision.
        revision: RevisionId,
        /// Whether a sandbox of it starts.
        result: Result<(), StartFailure>,
        /// Whether one has been ready before, as far as this term knows.
        has_started: bool,
    },
    /// A sandbox is ready of a revision whose last start had failed.
    Recovered {
        /// The function's name.
        name: FunctionName,
        /// The revision.
        revision: RevisionId,
    },
    /// The last change of this function's traffic has taken effect.
    TrafficSwitched(FunctionId),
    /// A deleted function has no sandbox left.
    FunctionDrained(FunctionId),
}
