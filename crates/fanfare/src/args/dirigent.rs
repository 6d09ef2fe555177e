//! Taking registrations as Dirigent does.

use clap::Args as ClapArgs;
use fanfare_types::limits;

/// Whether forms are taken, and what the images in them are.
#[derive(ClapArgs, Clone, Debug, Default)]
pub(crate) struct DirigentArgs {
    /// Take registrations as Dirigent's control plane does, for the load generator InVitro: forms, on the control API's
    /// address. Its own images are offered as a built-in function.
    #[arg(long, hide_short_help = true)]
    pub(crate) dirigent: bool,
    /// What an image of such forms is: a path as `fanfare deploy` takes one, or `trace`, `empty` or `fake`; may be
    /// repeated.
    #[arg(long = "dirigent-image", value_name = "IMAGE=PATH", requires = "dirigent", value_parser = image,
          hide_short_help = true)]
    pub(crate) images: Vec<(String, String)>,
}

fn image(text: &str) -> Result<(String, String), String> {
    match text.split_once('=') {
        Some((name, _)) if name.chars().count() > limits::IMAGE_NAME_LEN_MAX => {
            Err(format!("an image's name has at most {} characters", limits::IMAGE_NAME_LEN_MAX))
        }
        Some((name, what)) if !name.is_empty() && !what.is_empty() => Ok((name.to_owned(), what.to_owned())),
        _ => Err("give it as IMAGE=PATH".to_owned()),
    }
}
