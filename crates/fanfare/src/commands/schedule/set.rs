//! `fanfare schedule set`.

use std::collections::BTreeMap;
use std::os::fd::AsFd;
use std::time::{SystemTime, UNIX_EPOCH};

use fanfare_api::{DeliveryName, FieldError, MissedName, Quantity, ScheduleDocument, ScheduleOutcome};
use fanfare_schedule::{ScheduleSpec, Wall};
use fanfare_types::limits::SCHEDULE_BODY_BYTES_MAX;
use tokio::io::AsyncReadExt;

use super::print;
use crate::args::{Delivery, Missed, ScheduleSetArgs};
use crate::commands::Context;
use crate::exit::{Exit, Failure};

pub(crate) async fn run(context: &Context, args: &ScheduleSetArgs) -> Result<Exit, Failure> {
    let document = ScheduleDocument {
        name: args.name.to_string(),
        function: args.function.to_string(),
        cron: args.when.cron.clone(),
        zone: args.zone.clone(),
        at: args.when.at.clone().or_else(|| args.when.after.map(from_now)),
        method: args.method.clone(),
        path: args.path.clone(),
        headers: headers(&args.headers)?,
        body: body(args.data.as_deref()).await?,
        delivery: args.delivery.map(|delivery| match delivery {
            Delivery::AtLeastOnce => DeliveryName::AtLeastOnce,
            Delivery::AtMostOnce => DeliveryName::AtMostOnce,
        }),
        max_attempts: args.max_attempts,
        max_age: args.max_age.as_deref().map(Quantity::from),
        missed: args.missed.map(|missed| match missed {
            Missed::Skip => MissedName::Skip,
            Missed::Once => MissedName::Once,
        }),
    };
    // Found wrong here, it is known without a control plane.
    ScheduleSpec::try_from(document.clone()).map_err(as_flag)?;
    let result = context.client.put_schedule(&document).await?;
    let done = if result.outcome == ScheduleOutcome::Created { "Created" } else { "Updated" };
    print(context, &result, done, args.output.output)
}

fn from_now(after: std::time::Duration) -> String {
    let now = SystemTime::now().duration_since(UNIX_EPOCH).unwrap_or_default();
    Wall(u64::try_from((now + after).as_millis()).unwrap_or(u64::MAX)).to_string()
}

/// Names the flag instead of the field, where they differ.
fn as_flag(error: FieldError) -> Failure {
    let flag = match error.field.as_str() {
        "body" => "--data",
        "cron" | "zone" | "at" | "method" | "path" | "missed" | "delivery" => return error.into(),
        "max_attempts" => "--max-attempts",
        "max_age" => "--max-age",
        field if field.starts_with("headers") => "--header",
        _ => return error.into(),
    };
    let what = format!("{flag}: {}", error.message);
    Failure { what, ..Failure::from(error) }
}

fn headers(given: &[String]) -> Result<BTreeMap<String, String>, Failure> {
    let mut headers = BTreeMap::new();
    for header in given {
        let (name, value) = header
            .split_once(':')
            .ok_or_else(|| Failure::usage("a --header has no colon").next("give it as -H 'Name: value'"))?;
        if headers.insert(name.trim().to_owned(), value.trim().to_owned()).is_some() {
            return Err(Failure::usage(format!("--header {}: is given twice", name.trim())));
        }
    }
    Ok(headers)
}

/// The body as text, no more than may be kept of it.
async fn body(data: Option<&str>) -> Result<Option<String>, Failure> {
    let most = SCHEDULE_BODY_BYTES_MAX as u64 + 1;
    let mut bytes = Vec::new();
    match data {
        None => return Ok(None),
        Some("-") => {
            let unreadable = |e: std::io::Error| Failure::usage(format!("cannot read standard input: {e}"));
            let stdin = std::io::stdin().as_fd().try_clone_to_owned().map_err(unreadable)?;
            let stdin = tokio::fs::File::from_std(stdin.into());
            stdin.take(most).read_to_end(&mut bytes).await.map_err(unreadable)?;
        }
        Some(data) => match data.strip_prefix('@') {
            None => return Ok(Some(data.to_owned())),
            Some(path) => {
                let unreadable = |e: std::io::Error| Failure::usage(format!("cannot read {path}: {e}"));
                let file = tokio::fs::File::open(path).await.map_err(unreadable)?;
                file.take(most).read_to_end(&mut bytes).await.map_err(unreadable)?;
            }
        },
    }
    let text = String::from_utf8(bytes);
    text.map(Some).map_err(|_| Failure::usage("--data: a schedule's body is text, in UTF-8"))
}
