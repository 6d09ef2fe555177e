//! The cluster: health, status, nodes, metrics.

use std::fmt::Write;
use std::sync::Arc;
use std::sync::atomic::Ordering;

use axum::Json;
use axum::extract::State;
use axum::response::IntoResponse;
use fanfare_api::{
    ClusterStatusDocument, DataPlaneDocument, HealthDocument, LeaderDocument, NodeDocument, NodeListDocument,
    Problem, SandboxCounts,
};
use fanfare_types::given_peer_name;
use http::header;
use tokio::sync::oneshot;

use super::App;
use super::problem::Failure;
use crate::MoreMetrics;
use crate::input::Input;
use crate::limits::METRICS_NODES_MAX;
use crate::view::ClusterView;

/// Whether the control plane decides.
#[utoipa::path(
    get, path = "/healthz", tag = "cluster",
    responses((status = 200, body = HealthDocument), (status = 503, body = Problem))
)]
pub(super) async fn health(State(app): State<Arc<App>>) -> Result<Json<HealthDocument>, Failure> {
    // An empty question, answered by the engine's task itself: a control plane that hangs is not healthy.
    let (answer, answered) = oneshot::channel();
    app.engine
        .send(Input::Functions { in_full: false, ids: Vec::new(), answer })
        .await
        .map_err(|_| Failure::stopping())?;
    answered.await.map_err(|_| Failure::stopping())?;
    Ok(Json(HealthDocument { status: "ok".to_owned() }))
}

/// The cluster at a glance.
#[utoipa::path(get, path = "/v1/status", tag = "cluster", responses((status = 200, body = ClusterStatusDocument)))]
pub(super) async fn cluster(State(app): State<Arc<App>>) -> Result<Json<ClusterStatusDocument>, Failure> {
    let view = view(&app).await?;
    let nodes = nodes_of(&app, &view);
    let on_nodes: u32 = nodes.iter().map(|node| node.sandboxes).sum();
    let data_planes = view.status.data_planes.iter().map(|data_plane| {
        let (in_flight, queued) = view.loads.get(&data_plane.data_plane).copied().unwrap_or_default();
        DataPlaneDocument {
            id: data_plane.data_plane.to_string(),
            name: given_peer_name(&data_plane.name).to_owned(),
            address: data_plane.address.to_string(),
            connected: view.data_planes_connected.contains(&data_plane.data_plane),
            in_flight,
            queued,
        }
    });
    Ok(Json(ClusterStatusDocument {
        version: env!("CARGO_PKG_VERSION").to_owned(),
        leader: LeaderDocument {
            name: app.name.clone(),
            epoch: app.epoch.0,
            here: true,
            streams: app.streams.map(|address| address.to_string()),
        },
        placement: app.placement.name().to_owned(),
        functions: app.registry.len() as u64,
        sandboxes: counts(&view, on_nodes),
        nodes,
        data_planes: data_planes.collect(),
    }))
}

/// Nodes ever seen, in the order of their names.
#[utoipa::path(get, path = "/v1/nodes", tag = "cluster", responses((status = 200, body = NodeListDocument)))]
pub(super) async fn nodes(State(app): State<Arc<App>>) -> Result<Json<NodeListDocument>, Failure> {
    let view = view(&app).await?;
    Ok(Json(NodeListDocument { nodes: nodes_of(&app, &view) }))
}

/// Counts for Prometheus.
#[utoipa::path(
    get, path = "/metrics", tag = "cluster",
    responses((status = 200, description = "Prometheus text format 0.0.4", content_type = "text/plain", body = String))
)]
pub(super) async fn metrics(State(app): State<Arc<App>>) -> Result<impl IntoResponse, Failure> {
    let view = view(&app).await?;
    let status = &view.status;
    let reserved = status.nodes.iter().map(|node| node.capacity.saturating_sub(node.free).memory_bytes).sum();
    let load = |of: fn(&(u64, u64)) -> u64| view.loads.values().map(of).sum::<u64>();
    let rows: [(&str, &str, &str, u64); 16] = [
        ("control_plane_epoch", "gauge", "The leader's term.", app.epoch.0),
        ("functions", "gauge", "Registered functions.", app.registry.len() as u64),
        ("schedules", "gauge", "Schedules.", app.schedules.len() as u64),
        ("sandboxes_ready", "gauge", "Sandboxes that accept requests.", status.sandboxes_ready as u64),
        (
            "sandboxes_starting",
            "gauge",
            "Sandboxes that are being created.",
            status.sandboxes_starting as u64,
        ),
        ("nodes_connected", "gauge", "Nodes whose stream is up.", view.nodes_connected.len() as u64),
        (
            "data_planes_connected",
            "gauge",
            "Data planes whose stream is up.",
            view.data_planes_connected.len() as u64,
        ),
        (
            "capacity_memory_bytes",
            "gauge",
            "Memory that connected nodes offer.",
            status.capacity.memory_bytes,
        ),
        ("reserved_memory_bytes", "gauge", "Memory that sandboxes reserve.", reserved),
        ("requests_in_flight", "gauge", "Requests in sandboxes, as last reported.", load(|load| load.0)),
        ("requests_queued", "gauge", "Requests that wait, as last reported.", load(|load| load.1)),
        ("engine_events_total", "counter", "Steps of the engine.", view.counters.events),
        ("engine_commands_total", "counter", "Commands of the engine.", view.counters.commands),
        (
            "sandboxes_ordered_total",
            "counter",
            "Sandboxes that nodes were told to create.",
            view.counters.sandboxes,
        ),
        (
            "api_requests_total",
            "counter",
            "Requests to the control API.",
            app.requests.load(Ordering::Relaxed),
        ),
        ("api_failures_total", "counter", "Those answered with a 5xx.", app.failures.load(Ordering::Relaxed)),
    ];
    let mut text = String::new();
    for (name, kind, help, value) in rows {
        // Writing to a string cannot fail.
        let _ = write!(
            text,
            "# HELP fanfare_{name} {help}\n# TYPE fanfare_{name} {kind}\nfanfare_{name} {value}\n"
        );
    }
    per_node(&mut text, &nodes_of(&app, &view));
    if let Some(MoreMetrics(more)) = &app.more_metrics {
        text.push_str(&more());
    }
    Ok(([(header::CONTENT_TYPE, "text/plain; version=0.0.4")], text))
}

/// Series of single nodes, for as many as one look can take in.
fn per_node(text: &mut String, nodes: &[NodeDocument]) {
    type Column = (&'static str, &'static str, fn(&NodeDocument) -> u64);
    const COLUMNS: [Column; 3] = [
        ("node_connected", "Whether the node's stream is up.", |node| node.connected.into()),
        ("node_sandboxes", "Sandboxes on the node.", |node| node.sandboxes.into()),
        ("node_reserved_memory_bytes", "Memory that its sandboxes reserve.", |node| {
            node.reserved.memory_bytes
        }),
    ];
    for (name, help, of) in COLUMNS {
        // Writing to a string cannot fail.
        let _ = writeln!(text, "# HELP fanfare_{name} {help}\n# TYPE fanfare_{name} gauge");
        for node in nodes.iter().take(METRICS_NODES_MAX) {
            // Names have no character that needs an escape.
            let _ = writeln!(text, "fanfare_{name}{{node=\"{}\"}} {}", node.name, of(node));
        }
    }
}

async fn view(app: &App) -> Result<ClusterView, Failure> {
    let (answer, answered) = oneshot::channel();
    app.engine.send(Input::Cluster { answer }).await.map_err(|_| Failure::stopping())?;
    answered.await.map_err(|_| Failure::stopping())
}

fn nodes_of(app: &App, view: &ClusterView) -> Vec<NodeDocument> {
    let documents = app.registry.nodes().into_iter().map(|(name, id)| {
        let alive = view.status.nodes.binary_search_by_key(&id, |node| node.node);
        let alive = alive.ok().and_then(|index| view.status.nodes.get(index));
        let capacity = alive.map(|node| node.capacity).unwrap_or_default();
        let free = alive.map(|node| node.free).unwrap_or_default();
        NodeDocument {
            id: id.to_string(),
            name: name.to_string(),
            connected: view.nodes_connected.contains(&id),
            capacity: capacity.into(),
            reserved: capacity.saturating_sub(free).into(),
            sandboxes: alive.map_or(0, |node| node.sandboxes),
            runtimes: alive.into_iter().flat_map(|node| &node.runtimes).map(ToString::to_string).collect(),
        }
    });
    documents.collect()
}

fn counts(view: &ClusterView, on_nodes: u32) -> SandboxCounts {
    let count = |n: usize| u32::try_from(n).unwrap_or(u32::MAX);
    let (ready, starting) = (count(view.status.sandboxes_ready), count(view.status.sandboxes_starting));
    SandboxCounts {
        wanted: ready + starting,
        ready,
        starting,
        stopping: on_nodes.saturating_sub(ready + starting),
        old: 0,
    }
}
