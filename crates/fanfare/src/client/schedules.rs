//! Schedules, as calls of the control API.

use fanfare_api::{
    ScheduleDocument, ScheduleListDocument, ScheduleResult, ScheduleRunResult, ScheduleStatusDocument,
    ScheduleSummaryDocument,
};
use fanfare_types::{FunctionName, Reason, limits};
use http::{Method, header};

use super::{ANSWER_TIMEOUT, Client, PAGE, answer};
use crate::exit::Failure;
use crate::http::{full_body, no_body};
use crate::suggest;

impl Client {
    pub(crate) async fn put_schedule(&self, document: &ScheduleDocument) -> Result<ScheduleResult, Failure> {
        let body = serde_json::to_vec(document)
            .map_err(|e| Failure::usage(format!("the schedule cannot be written as JSON: {e}")))?;
        // Fields of a request may hold secrets.
        let headers = document.headers.keys().map(|name| (name.clone(), "…".to_owned())).collect();
        let shown = serde_json::to_string(&ScheduleDocument { headers, ..document.clone() });
        let path = format!("/v1/schedules/{}", document.name);
        let mut request = self.request(Method::PUT, &path, full_body(body))?;
        request
            .headers_mut()
            .insert(header::CONTENT_TYPE, header::HeaderValue::from_static("application/json"));
        let put = answer(self.send(request, ANSWER_TIMEOUT, shown.ok().as_deref()).await?).await;
        match FunctionName::new(&document.function) {
            Ok(function) => self.suggesting(&function, put).await,
            Err(_) => put,
        }
    }

    pub(crate) async fn schedule(&self, name: &FunctionName) -> Result<ScheduleStatusDocument, Failure> {
        let got = self.get(&format!("/v1/schedules/{name}")).await;
        self.suggesting_schedule(name, got).await
    }

    /// Every schedule, page by page.
    pub(crate) async fn schedules(&self) -> Result<Vec<ScheduleSummaryDocument>, Failure> {
        let mut all = Vec::new();
        let mut path = format!("/v1/schedules?limit={PAGE}");
        loop {
            let page: ScheduleListDocument = self.get(&path).await?;
            let more = !page.schedules.is_empty() && all.len() < limits::SCHEDULES_MAX;
            all.extend(page.schedules);
            match page.next {
                Some(next) if more => path = format!("/v1/schedules?limit={PAGE}&after={next}"),
                _ => return Ok(all),
            }
        }
    }

    /// Pauses a schedule, or resumes it.
    pub(crate) async fn pause_schedule(
        &self,
        name: &FunctionName,
        pause: bool,
    ) -> Result<ScheduleResult, Failure> {
        let verb = if pause { "pause" } else { "resume" };
        let request = self.request(Method::POST, &format!("/v1/schedules/{name}/{verb}"), no_body())?;
        let done = answer(self.send(request, ANSWER_TIMEOUT, None).await?).await;
        self.suggesting_schedule(name, done).await
    }

    pub(crate) async fn run_schedule(&self, name: &FunctionName) -> Result<ScheduleRunResult, Failure> {
        let request = self.request(Method::POST, &format!("/v1/schedules/{name}/run"), no_body())?;
        let fired = answer(self.send(request, ANSWER_TIMEOUT, None).await?).await;
        self.suggesting_schedule(name, fired).await
    }

    pub(crate) async fn delete_schedule(&self, name: &FunctionName) -> Result<(), Failure> {
        let deleted = self.delete(&format!("/v1/schedules/{name}")).await;
        self.suggesting_schedule(name, deleted).await
    }

    /// Adds the name that was probably meant to a failure of the kind "no such schedule".
    async fn suggesting_schedule<T>(
        &self,
        name: &FunctionName,
        result: Result<T, Failure>,
    ) -> Result<T, Failure> {
        let failure = match result {
            Err(failure) if failure.is(Reason::ScheduleNotFound) => failure,
            other => return other,
        };
        let page: Result<ScheduleListDocument, _> = self.get(&format!("/v1/schedules?limit={PAGE}")).await;
        let known = page.map(|page| page.schedules).unwrap_or_default();
        Err(match suggest::closest(name.as_str(), known.iter().map(|s| s.name.as_str())) {
            Some(meant) => failure.next(format!("did you mean {meant}?")),
            None => failure,
        })
    }
}
