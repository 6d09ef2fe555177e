//! A function's log, from all nodes that have lines of it.
//!
//! Nodes keep the lines; each sends them under a number that it is given. The last lines of all nodes are merged by
//! the nodes' clocks. Then each node is asked to go on; what it repeats is dropped by its line numbers, and what is
//! missing is said.

use std::collections::{BTreeMap, BTreeSet};
use std::sync::Arc;
use std::time::Duration;

use axum::body::Body;
use axum::extract::State;
use axum::response::{IntoResponse, Response};
use bytes::Bytes;
use fanfare_api::{FieldError, LogLineDocument, LogStreamName, Problem, parse_duration};
use fanfare_link::{LogRecord, LogStream};
use fanfare_types::{FunctionId, FunctionName, LogSelect, NodeId, Reason, ToNode};
use futures_util::StreamExt;
use futures_util::stream::{self, BoxStream, SelectAll};
use http::{Uri, header};
use tokio::sync::{OwnedSemaphorePermit, mpsc, oneshot};
use tokio_stream::wrappers::ReceiverStream;

use super::App;
use super::explain;
use super::extract::Name;
use super::functions::{find, statuses};
use super::problem::{Failure, quoted};
use super::query::Parameters;
use crate::input::Input;
use crate::limits::{LOG_NODE_TIMEOUT, LOG_QUEUE_LINES, LOG_READERS_MAX, LOG_TAIL_DEFAULT, LOG_TAIL_MAX};
use crate::registry::Function;
use crate::view::NodeRef;

/// How often a follower looks for nodes that have come, or whose lines broke off.
const LOOK_INTERVAL: Duration = Duration::from_secs(1);
/// Lines that a node repeats when it is asked to go on, so that none written meanwhile is missed.
const OVERLAP_LINES: u32 = 1_000;

#[derive(Debug)]
struct LogsQuery {
    tail: u32,
    follow: bool,
    since: Option<String>,
    sandbox: Option<String>,
    request: Option<String>,
}

impl LogsQuery {
    fn read(uri: &Uri) -> Result<Self, FieldError> {
        let query = Parameters::read(uri, &["tail", "follow", "since", "sandbox", "request"])?;
        let text = |name| query.text(name).map(str::to_owned);
        Ok(LogsQuery {
            tail: query.number("tail", LOG_TAIL_DEFAULT, 0..=LOG_TAIL_MAX)?,
            follow: query.truth("follow")?,
            since: text("since"),
            sandbox: text("sandbox"),
            request: text("request"),
        })
    }

    /// Which lines are wanted; those of a request are found by its record.
    async fn select(&self, app: &App, function: FunctionId) -> Result<(LogSelect, Option<String>), Failure> {
        let mut select = LogSelect::default();
        if let Some(since) = &self.since {
            let age = parse_duration(since);
            let wrong = || FieldError::new("since", quoted(since), "a duration such as 30s, 10m or 2h");
            select.age_max = Some(age.ok_or_else(wrong)?);
        }
        if let Some(sandbox) = &self.sandbox {
            let known = sandbox.starts_with('s').then(|| sandbox.parse().ok()).flatten();
            let wrong = || FieldError::new("sandbox", quoted(sandbox), "an id such as s10000000007");
            select.sandbox = Some(known.ok_or_else(wrong)?);
        }
        let Some(request) = &self.request else { return Ok((select, None)) };
        if self.follow || self.since.is_some() || self.sandbox.is_some() {
            let allowed = "without follow, since and sandbox: a request has ended, and was in one sandbox";
            return Err(FieldError::disagreeing("request", quoted(request), allowed).into());
        }
        let (slot, note) = explain::lines_of(app, request, function).await?;
        Ok((slot, note))
    }
}

/// The last lines of a function's log, and what follows: one JSON document per line.
#[utoipa::path(
    get, path = "/v1/functions/{name}/logs", tag = "functions",
    params(
        ("name" = String, Path),
        ("tail" = Option<u32>, Query, description = "So many of the last lines: 0 to 10000, default 100"),
        (
            "follow" = Option<bool>, Query,
            description = "Then go on until the client closes, or the function is deleted, which the last line says"
        ),
        ("since" = Option<String>, Query, description = "Only lines that are not older than this, e.g. `10m`"),
        ("sandbox" = Option<String>, Query, description = "Only lines of this sandbox, e.g. `s10000000007`"),
        (
            "request" = Option<String>, Query,
            description = "Only lines that were written while this request was in its sandbox; not with follow"
        ),
    ),
    responses(
        (
            status = 200, content_type = "application/x-ndjson", body = Vec<LogLineDocument>,
            description = "A line for each, as they come",
        ),
        (status = 404, description = "No such function, or nothing is remembered of the request", body = Problem),
        (status = 422, description = "A parameter is wrong", body = Problem),
    )
)]
pub(super) async fn logs(
    State(app): State<Arc<App>>,
    Name(name): Name,
    uri: Uri,
) -> Result<Response, Failure> {
    let query = LogsQuery::read(&uri)?;
    let function = find(&app, &name)?;
    let permit = app.log_readers.clone().try_acquire_owned().map_err(|_| {
        Failure::new(
            Reason::Unavailable,
            format!("{LOG_READERS_MAX} requests for logs are open, which is the limit"),
        )
    })?;
    let (select, note) = query.select(&app, function.id.function).await?;
    let (out, lines) = mpsc::channel(LOG_QUEUE_LINES);
    let reader = Reader {
        app,
        name: function.spec.name.clone(),
        parts: function.parts(),
        select,
        note,
        out,
        positions: BTreeMap::new(),
        names: BTreeMap::new(),
        _permit: permit,
    };
    tokio::spawn(reader.run(query.tail, query.follow));
    let content = Body::from_stream(ReceiverStream::new(lines).map(Ok::<_, std::convert::Infallible>));
    Ok(([(header::CONTENT_TYPE, "application/x-ndjson")], content).into_response())
}

struct Reader {
    app: Arc<App>,
    name: FunctionName,
    /// The function, and what runs earlier revisions of it beside the latest.
    parts: Vec<FunctionId>,
    select: LogSelect,
    /// What is to be said first.
    note: Option<String>,
    out: mpsc::Sender<Bytes>,
    positions: BTreeMap<Source, Position>,
    names: BTreeMap<NodeId, Arc<str>>,
    _permit: OwnedSemaphorePermit,
}

/// Whose lines, and of which part of the function: each node counts each part's lines.
type Source = (NodeId, FunctionId);

/// How far a source's lines were read.
#[derive(Clone, Copy, Debug)]
struct Position {
    logs: u64,
    seq: u64,
}

/// Lines of several sources as they come; `None` when a source's end.
type Lines = SelectAll<BoxStream<'static, (Source, Option<LogRecord>)>>;

/// The reader has left, or the control plane is stopping.
struct Gone;

impl Reader {
    async fn run(mut self, tail: u32, follow: bool) {
        if let Some(note) = self.note.take()
            && self.say(None, note).await.is_err()
        {
            return;
        }
        if tail > 0 && self.tail(tail).await.is_err() {
            return;
        }
        if follow && self.follow(tail).await.is_ok() {
            // Whoever has left is told nothing.
            let _ = self.say(None, format!("{} was deleted", self.name)).await;
        }
    }

    /// Sends the last lines of all nodes together, in the order of their clocks.
    async fn tail(&mut self, tail: u32) -> Result<(), Gone> {
        let sources = self.sources().await?;
        let mut incomplete: BTreeSet<Source> = sources.iter().map(|(node, part)| (node.id, *part)).collect();
        let mut lines = Lines::new();
        self.ask(&sources, tail, false, &mut lines).await?;
        let mut newest: BTreeMap<(u64, Source, u64), LogRecord> = BTreeMap::new();
        // A node that is slow is waited for, one that is silent is not.
        while let Ok(Some((source, line))) = tokio::time::timeout(LOG_NODE_TIMEOUT, lines.next()).await {
            let Some(line) = line else {
                incomplete.remove(&source);
                continue;
            };
            if let Some(position) = self.positions.get_mut(&source) {
                position.seq = position.seq.max(line.seq);
            }
            newest.insert((line.time_unix_ms, source, line.seq), line);
            if newest.len() > tail as usize {
                newest.pop_first();
            }
        }
        for ((_, (node, _), _), line) in newest {
            self.send(node, line).await?;
        }
        let silent: BTreeSet<NodeId> = incomplete.into_iter().map(|(node, _)| node).collect();
        for node in silent {
            let said = format!("the node sent nothing for {LOG_NODE_TIMEOUT:?}; lines of it may be missing");
            self.say(Some(node), said).await?;
        }
        Ok(())
    }

    /// Sends lines as nodes write them, also of nodes that come later, until the function is deleted and nothing of it
    /// is left.
    async fn follow(&mut self, tail: u32) -> Result<(), Gone> {
        let mut lines = Lines::new();
        let mut open = BTreeSet::new();
        let mut look = tokio::time::interval(LOOK_INTERVAL);
        look.set_missed_tick_behavior(tokio::time::MissedTickBehavior::Delay);
        // What was there before is wanted from nodes that were asked for it, and from nodes that come later.
        let mut overlap = if tail == 0 { 0 } else { OVERLAP_LINES };
        let mut ended = false;
        loop {
            let (out, shutdown) = (self.out.clone(), self.app.shutdown.clone());
            tokio::select! {
                biased;
                () = out.closed() => return Err(Gone),
                () = shutdown.cancelled() => return Err(Gone),
                _ = look.tick() => {
                    // The last lines may still be on their way when the sandboxes are gone.
                    if std::mem::replace(&mut ended, self.has_ended().await?) {
                        return Ok(());
                    }
                    let mut sources = self.sources().await?;
                    sources.retain(|(node, part)| !open.contains(&(node.id, *part)));
                    open.extend(sources.iter().map(|(node, part)| (node.id, *part)));
                    self.ask(&sources, overlap, true, &mut lines).await?;
                    overlap = OVERLAP_LINES;
                }
                Some((source, line)) = lines.next(), if !lines.is_empty() => match line {
                    Some(line) => self.go_on(source, line).await?,
                    None => drop(open.remove(&source)),
                },
            }
        }
    }

    /// Sends a line unless it was sent before; says how many are missing in front of it.
    async fn go_on(&mut self, source: Source, line: LogRecord) -> Result<(), Gone> {
        let (node, _) = source;
        if let Some(position) = self.positions.get_mut(&source) {
            if line.seq <= position.seq {
                return Ok(());
            }
            let missing = line.seq - position.seq - 1;
            let known = position.seq > 0 && !self.select.has_gaps();
            position.seq = line.seq;
            if known && missing > 0 {
                let said = format!("{missing} lines are missing: they came faster than they could be kept");
                self.say(Some(node), said).await?;
            }
        }
        self.send(node, line).await
    }

    /// The function, while it is not deleted: another one may have its name by now.
    fn registered(&self) -> Option<Function> {
        let function = self.app.registry.function(self.name.as_str());
        function.filter(|function| self.parts.first() == Some(&function.id.function))
    }

    /// Whether the function is deleted and nothing of it is left that could write.
    async fn has_ended(&self) -> Result<bool, Gone> {
        if self.registered().is_some() {
            return Ok(false);
        }
        let (_, left) = statuses(&self.app, self.parts.clone(), false).await.map_err(|_| Gone)?;
        Ok(left.iter().all(Option::is_none))
    }

    /// Connected nodes with each part of the function; a source's position is kept unless its node's log has
    /// begun anew.
    async fn sources(&mut self) -> Result<Vec<(NodeRef, FunctionId)>, Gone> {
        let (answer, answered) = oneshot::channel();
        self.app.engine.send(Input::Nodes { answer }).await.map_err(|_| Gone)?;
        let nodes = answered.await.map_err(|_| Gone)?;
        // Of one that is deleted meanwhile those that there were.
        if let Some(function) = self.registered() {
            self.parts = function.parts();
        }
        let mut sources = Vec::new();
        for node in nodes {
            let begin = Position { logs: node.logs, seq: 0 };
            for part in &self.parts {
                let position = self.positions.entry((node.id, *part)).or_insert(begin);
                if position.logs != node.logs {
                    *position = begin;
                }
                sources.push((node.clone(), *part));
            }
            self.names.insert(node.id, node.name);
        }
        Ok(sources)
    }

    async fn ask(
        &self,
        sources: &[(NodeRef, FunctionId)],
        tail_lines: u32,
        follow: bool,
        lines: &mut Lines,
    ) -> Result<(), Gone> {
        let mut messages = Vec::with_capacity(sources.len());
        for (node, function) in sources {
            let transfer = self.app.transfers.open();
            let source = (node.id, *function);
            // What was read up to somewhere is gone on with there, however much was written meanwhile.
            let read = self.positions.get(&source).map(|position| position.seq).filter(|seq| *seq > 0);
            let after = read.filter(|_| follow);
            let message = ToNode::Logs {
                transfer: transfer.number,
                function: *function,
                tail_lines,
                follow,
                select: LogSelect { after, ..self.select },
            };
            messages.push((node.clone(), message));
            let end = stream::iter([(source, None)]);
            lines.push(transfer.map(move |line| (source, Some(line))).chain(end).boxed());
        }
        self.app.engine.send(Input::TellNodes(messages)).await.map_err(|_| Gone)
    }

    async fn say(&self, node: Option<NodeId>, text: String) -> Result<(), Gone> {
        self.send(
            node,
            LogRecord { seq: 0, time_unix_ms: 0, sandbox: None, stream: LogStream::Platform, text },
        )
        .await
    }

    async fn send(&self, node: impl Into<Option<NodeId>>, line: LogRecord) -> Result<(), Gone> {
        let document = LogLineDocument {
            seq: (line.seq > 0).then_some(line.seq),
            time_unix_ms: (line.time_unix_ms > 0).then_some(line.time_unix_ms),
            node: node.into().and_then(|node| self.names.get(&node)).map(ToString::to_string),
            sandbox: line.sandbox.map(|sandbox| sandbox.to_string()),
            stream: match line.stream {
                LogStream::Stdout => LogStreamName::Stdout,
                LogStream::Stderr => LogStreamName::Stderr,
                LogStream::Platform => LogStreamName::Platform,
            },
            text: line.text,
        };
        let mut json = serde_json::to_vec(&document).map_err(|_| Gone)?;
        json.push(b'\n');
        self.out.send(json.into()).await.map_err(|_| Gone)
    }
}
