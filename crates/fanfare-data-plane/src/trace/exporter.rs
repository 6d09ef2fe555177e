//! Spans on their way to the collector.

use std::sync::Arc;
use std::time::Duration;

use bytes::Bytes;
use http::{Method, Request, header};
use http_body_util::Full;
use hyper_util::client::legacy::Client;
use hyper_util::client::legacy::connect::HttpConnector;
use hyper_util::rt::TokioExecutor;
use serde_json::{Value, json};
use tokio::sync::mpsc;

use crate::shared::Shared;

/// Requests whose spans travel together.
const BATCH_MAX: usize = 256;
/// How long the first of a batch waits for others.
const BATCH_WAIT: Duration = Duration::from_millis(500);
/// How long the collector may take to answer.
const EXPORT_TIMEOUT: Duration = Duration::from_secs(5);

/// Exports spans until nobody can give any more. What the collector does not take is dropped and counted: spans are
/// worth less than the memory they would wait in.
pub(crate) async fn run(shared: Arc<Shared>, endpoint: String, mut waiting: mpsc::Receiver<Value>) {
    let client: Client<HttpConnector, Full<Bytes>> = Client::builder(TokioExecutor::new()).build_http();
    let url = format!("{}/v1/traces", endpoint.trim_end_matches('/'));
    let mut batch = Vec::new();
    let mut complained = false;
    while waiting.recv_many(&mut batch, BATCH_MAX).await > 0 {
        let more =
            async { while batch.len() < BATCH_MAX && waiting.recv_many(&mut batch, BATCH_MAX).await > 0 {} };
        // Whatever has come by then is enough.
        let _ = tokio::time::timeout(BATCH_WAIT, more).await;
        let count = batch.len() as u64;
        let sent = send(&client, &url, &shared.options.name, std::mem::take(&mut batch)).await;
        match sent {
            Ok(()) => complained = false,
            Err(error) => {
                shared.tracer.iter().for_each(|tracer| tracer.lost(count));
                if !std::mem::replace(&mut complained, true) {
                    tracing::warn!(%url, %error, "spans cannot be exported; those that cannot are dropped and counted");
                }
            }
        }
    }
}

async fn send(
    client: &Client<HttpConnector, Full<Bytes>>,
    url: &str,
    name: &str,
    requests: Vec<Value>,
) -> Result<(), String> {
    let spans: Vec<Value> = requests
        .into_iter()
        .flat_map(|spans| if let Value::Array(spans) = spans { spans } else { Vec::new() })
        .collect();
    let attribute = |key: &str, value: &str| json!({"key": key, "value": {"stringValue": value}});
    let document = json!({"resourceSpans": [{
        "resource": {"attributes": [
            attribute("service.name", "fanfare"),
            attribute("service.instance.id", name),
            attribute("service.version", env!("CARGO_PKG_VERSION")),
        ]},
        "scopeSpans": [{"scope": {"name": "fanfare.data-plane"}, "spans": spans}],
    }]});
    let body = serde_json::to_vec(&document).map_err(|error| error.to_string())?;
    let request = Request::builder()
        .method(Method::POST)
        .uri(url)
        .header(header::CONTENT_TYPE, "application/json")
        .body(Full::new(Bytes::from(body)))
        .map_err(|error| error.to_string())?;
    match tokio::time::timeout(EXPORT_TIMEOUT, client.request(request)).await {
        Ok(Ok(response)) if response.status().is_success() => Ok(()),
        Ok(Ok(response)) => Err(format!("the collector answered {}", response.status())),
        Ok(Err(error)) => Err(error.to_string()),
        Err(_) => Err(format!("no answer within {EXPORT_TIMEOUT:?}")),
    }
}
