//! One HTTP client for the control API and for functions.

use std::io;
use std::time::Duration;

use bytes::Bytes;
use http::{HeaderMap, Request, Response, Uri, header};
use http_body_util::combinators::BoxBody;
use http_body_util::{BodyExt, Empty, Full};
use hyper::body::Incoming;
use hyper_util::client::legacy::{Client, Error, connect::HttpConnector};
use hyper_util::rt::{TokioExecutor, TokioTimer};

use crate::exit::{Exit, Failure};
use crate::printer::Printer;

/// Longest wait for a connection.
const CONNECT_TIMEOUT: Duration = Duration::from_secs(5);
/// Headers whose values are not printed.
const SECRET_HEADERS: [header::HeaderName; 4] =
    [header::AUTHORIZATION, header::COOKIE, header::PROXY_AUTHORIZATION, header::SET_COOKIE];

/// A request's body.
pub(crate) type Body = BoxBody<Bytes, io::Error>;

/// A body with nothing in it.
pub(crate) fn no_body() -> Body {
    Empty::new().map_err(|never| match never {}).boxed()
}

/// A body that is known already.
pub(crate) fn full_body(bytes: impl Into<Bytes>) -> Body {
    Full::new(bytes.into()).map_err(|never| match never {}).boxed()
}

/// Where a server is: scheme, authority, and a path prefix without its last `/`.
#[derive(Clone, Debug)]
pub(crate) struct Base(String);

impl std::fmt::Display for Base {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.write_str(&self.0)
    }
}

impl Base {
    /// Reads `http://HOST:PORT[/PREFIX]` or `HOST:PORT`.
    pub(crate) fn parse(text: &str, flag: &str) -> Result<Self, Failure> {
        let full = if text.contains("://") { text.to_owned() } else { format!("http://{text}") };
        let wrong =
            |why: &str| Failure::usage(format!("{flag} {text:?} {why}")).next("give it as http://HOST:PORT");
        let uri: Uri = full.parse().map_err(|e| wrong(&format!("is no URL: {e}")))?;
        match uri.scheme_str() {
            Some("http") if uri.query().is_none() => Ok(Base(full.trim_end_matches('/').to_owned())),
            Some("http") => Err(wrong("has a query")),
            Some(other) => Err(wrong(&format!("has the scheme {other}; only http is spoken here"))),
            None => Err(wrong("has no host")),
        }
    }

    /// The URL of `path`, which begins with `/`.
    pub(crate) fn join(&self, path: &str) -> String {
        format!("{}{path}", self.0)
    }
}

/// Sends requests.
#[derive(Clone, Debug)]
pub(crate) struct Http {
    client: Client<HttpConnector, Body>,
    pub(crate) printer: Printer,
}

impl Http {
    pub(crate) fn new(printer: Printer) -> Self {
        let mut connector = HttpConnector::new();
        connector.set_connect_timeout(Some(CONNECT_TIMEOUT));
        connector.set_nodelay(true);
        let client = Client::builder(TokioExecutor::new()).pool_timer(TokioTimer::new()).build(connector);
        Http { client, printer }
    }

    /// Sends one request; resolves with the head of the answer. `shown` is the body as `--debug` shows it.
    ///
    /// # Errors
    /// The server cannot be reached, does not speak HTTP, or is silent for longer than `limit`.
    pub(crate) async fn send(
        &self,
        request: Request<Body>,
        limit: Option<Duration>,
        shown: Option<&str>,
    ) -> Result<Response<Incoming>, Failure> {
        self.printer.debug(|| curl(&request, shown));
        let server = request.uri().authority().map(ToString::to_string).unwrap_or_default();
        let answer = self.client.request(request);
        let answer = match limit {
            None => answer.await,
            Some(limit) => tokio::time::timeout(limit, answer).await.map_err(|_| {
                Failure::new(Exit::Timeout, format!("{server} did not answer within {limit:?}"))
            })?,
        };
        let response = answer.map_err(|e| send_failure(&server, &e))?;
        self.printer.debug(|| format!("{} from {server}", response.status()));
        Ok(response)
    }
}

fn send_failure(server: &str, error: &Error) -> Failure {
    if error.is_connect() {
        // A word alone is seldom meant as a name, but that is what it is.
        let read_as = if server.contains(':') { "" } else { ", read as a machine's name, at port 80" };
        Failure::platform(format!("cannot connect to {server}{read_as}: {}", root_cause(error)))
    } else {
        Failure::platform(format!("{server} broke off before it answered: {}", root_cause(error)))
            .unanswered()
    }
}

/// The innermost cause: the outer ones only say that there is one.
pub(crate) fn root_cause(error: &dyn std::error::Error) -> String {
    let mut cause = error;
    while let Some(inner) = cause.source() {
        cause = inner;
    }
    cause.to_string()
}

/// The request as a command line, secrets masked.
fn curl(request: &Request<Body>, shown: Option<&str>) -> String {
    let mut line = format!("curl -i -X {}", request.method());
    for (name, value) in request.headers() {
        line.push_str(&format!(" -H {}", quoted(&format!("{name}: {}", shown_value(name, value)))));
    }
    if let Some(body) = shown {
        line.push_str(&format!(" --data-binary {}", quoted(body)));
    }
    format!("{line} {}", quoted(&request.uri().to_string()))
}

/// A header's value for people, secrets masked.
pub(crate) fn shown_value(name: &header::HeaderName, value: &header::HeaderValue) -> String {
    if SECRET_HEADERS.contains(name) {
        return "***".to_owned();
    }
    String::from_utf8_lossy(value.as_bytes()).into_owned()
}

fn quoted(text: &str) -> String {
    format!("'{}'", text.replace('\'', r"'\''"))
}

/// A header as text; `None` when it is absent or not text.
pub(crate) fn header_text<'a>(headers: &'a HeaderMap, name: &str) -> Option<&'a str> {
    headers.get(name).and_then(|value| value.to_str().ok())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn bases() {
        for (given, joined) in [
            ("127.0.0.1:9091", "http://127.0.0.1:9091/v1"),
            ("http://host:1/", "http://host:1/v1"),
            ("http://host/prefix/", "http://host/prefix/v1"),
        ] {
            assert_eq!(Base::parse(given, "--api").unwrap().join("/v1"), joined);
        }
        for bad in ["https://host", "ftp://host", "http://", "http://host/?q=1", "a b"] {
            assert_eq!(Base::parse(bad, "--api").unwrap_err().exit, Exit::Usage, "{bad}");
        }
    }

    #[test]
    fn curl_masks_secrets_and_quotes() {
        let request = Request::put("http://h/v1")
            .header("authorization", "Bearer canary")
            .header("x-note", "it's")
            .body(no_body())
            .unwrap();
        let line = curl(&request, Some("{\"a\": 1}"));
        assert_eq!(
            line,
            r#"curl -i -X PUT -H 'authorization: ***' -H 'x-note: it'\''s' --data-binary '{"a": 1}' 'http://h/v1'"#
        );
    }
}
