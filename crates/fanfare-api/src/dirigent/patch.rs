//! A form that changes a function's scaling.

use fanfare_types::limits;

use super::form::Form;
use crate::{FieldError, FunctionDocument, Quantity};

/// What a form changes of a function.
#[derive(Debug, PartialEq, Eq)]
pub struct DirigentPatch {
    /// The function's name.
    pub function: String,
    form: Form,
}

impl DirigentPatch {
    /// Reads a form. The caller bounds it (`limits::FORM_BYTES_MAX`).
    ///
    /// # Errors
    /// The field that is missing or wrong.
    pub fn from_form(bytes: &[u8]) -> Result<Self, FieldError> {
        let form = Form::parse(bytes)?;
        let function = form.text("function").map(str::to_owned);
        let function = function.ok_or_else(|| FieldError::missing("function", "the function's name"))?;
        Ok(DirigentPatch { function, form })
    }

    /// Changes what the form names, and nothing else. Two settings of Dirigent's have no meaning here and are skipped:
    /// `target_burst_capacity` (every request passes a data plane anyway) and `total_value` (what a sandbox carries in
    /// all is its concurrency).
    ///
    /// # Errors
    /// The field that is wrong. What it says with the others is checked with the whole document.
    pub fn apply(&self, document: &mut FunctionDocument) -> Result<(), FieldError> {
        const COUNT: &str = "a whole number, at least 0";
        let form = &self.form;
        let scaling = &mut document.scaling;
        if let Some(max) = form.number::<u32>("scaling_upper_bound", COUNT)? {
            scaling.max = Some(if max == 0 { limits::SCALE_MAX } else { max });
        }
        scaling.min = form.number("scaling_lower_bound", COUNT)?.or(scaling.min);
        scaling.initial = form.number("initial_scale", COUNT)?.or(scaling.initial);
        if let Some(percent) = form.amount("panic_threshold_percentage")? {
            scaling.panic_threshold = Some(percent / 100.0);
        }
        scaling.max_scale_up_rate = form.amount("max_scale_up_rate")?.or(scaling.max_scale_up_rate);
        scaling.max_scale_down_rate = form.amount("max_scale_down_rate")?.or(scaling.max_scale_down_rate);
        if let Some(percent) = form.amount("container_concurrency_target_percentage")? {
            scaling.target_utilization = Some(percent / 100.0);
        }
        if let Some(concurrency) = form.number("container_concurrency", COUNT)? {
            // As Knative has it: no limit.
            document.concurrency = Some(if concurrency == 0 { limits::CONCURRENCY_MAX } else { concurrency });
        }
        if let Some(seconds) = form.amount("scale_down_delay")? {
            scaling.scale_down_delay = Some(Quantity::Number(seconds));
        }
        if let Some(seconds) = form.amount("scaling_period")? {
            scaling.tick = Some(Quantity::Number(seconds));
        }
        let panic_window = form.amount("panic_window_width")?;
        if let Some(seconds) = form.amount("stable_window_width")? {
            scaling.stable_window = Some(Quantity::Number(seconds));
        }
        if let Some(seconds) = panic_window {
            let stable = scaling.stable_window.as_ref().and_then(Quantity::duration);
            let share = stable.map(|stable| seconds / stable.as_secs_f64()).filter(|share| *share <= 1.0);
            let too_wide =
                || FieldError::disagreeing("panic_window_width", seconds, "at most stable_window_width");
            scaling.panic_window_share = Some(share.ok_or_else(too_wide)?);
        }
        match form.text("scaling_method") {
            None | Some("arithmetic") => Ok(()),
            Some(other) => Err(FieldError::new("scaling_method", format!("{other:?}"), "arithmetic")),
        }
    }
}
