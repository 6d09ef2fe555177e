//! Images that functions can be registered with: names for code that is kept here.

use std::collections::{BTreeMap, HashSet};
use std::io::Read;
use std::sync::Arc;

use bytes::Bytes;
use fanfare_api::FunctionDocument;
use fanfare_types::{CodeDigest, limits};

use crate::blobs::{Blobs, UploadError};
use crate::limits::BLOB_CHUNK_BYTES;
use crate::{ControlPlaneError, Image, ImageCode};

/// The table, whole once the control plane runs.
#[derive(Debug, Default)]
pub(crate) struct Images {
    by_name: BTreeMap<String, Arc<FunctionDocument>>,
    code: HashSet<CodeDigest>,
}

impl Images {
    /// Takes the images' code in. Of two images with one name the later has it.
    pub(crate) async fn load(images: &[Image], blobs: &Blobs) -> Result<Images, ControlPlaneError> {
        if images.len() > limits::IMAGES_MAX {
            let what = format!("there are {} images; at most {} may be", images.len(), limits::IMAGES_MAX);
            return Err(ControlPlaneError::Image(what));
        }
        let mut table = Images::default();
        for image in images {
            let mut document = image.document.clone();
            if let Some(code) = &image.code {
                keep(blobs, code).await.map_err(|error| ControlPlaneError::Image(error.to_string()))?;
                document.code = Some(code.digest.to_string());
                table.code.insert(code.digest);
            }
            let document = Arc::new(document);
            table.by_name.extend(image.names.iter().map(|name| (name.clone(), document.clone())));
        }
        Ok(table)
    }

    /// What an image stands for: by its whole name, then by the last part of it.
    pub(crate) fn find(&self, image: &str) -> Option<&FunctionDocument> {
        self.by_name.get(image).or_else(|| self.by_name.get(familiar(image))).map(|document| &**document)
    }

    /// Some of the names that there are, for whoever asked for another.
    pub(crate) fn some_names(&self) -> String {
        const SHOWN_MAX: usize = 12;
        let mut names: Vec<&str> = self.by_name.keys().map(String::as_str).take(SHOWN_MAX).collect();
        if self.by_name.len() > SHOWN_MAX {
            names.push("…");
        }
        names.join(", ")
    }

    /// Code that stays without a function.
    pub(crate) fn code(&self) -> &HashSet<CodeDigest> {
        &self.code
    }
}

/// An image's name without registry, tag and digest.
fn familiar(image: &str) -> &str {
    let last = image.rsplit('/').next().unwrap_or(image);
    last.split([':', '@']).next().unwrap_or(last)
}

async fn keep(blobs: &Blobs, code: &ImageCode) -> Result<(), UploadError> {
    if blobs.touch(code.digest) {
        return Ok(());
    }
    let archive = code.archive.clone();
    let chunks = futures_util::stream::unfold(archive, |archive| async move {
        let read = tokio::task::spawn_blocking({
            let archive = archive.clone();
            move || {
                let mut chunk = vec![0; BLOB_CHUNK_BYTES];
                (&*archive).read(&mut chunk).map(|len| {
                    chunk.truncate(len);
                    Bytes::from(chunk)
                })
            }
        });
        let chunk = read.await.map_err(std::io::Error::other).and_then(|read| read);
        match chunk {
            Ok(chunk) if chunk.is_empty() => None,
            chunk => Some((chunk, archive)),
        }
    });
    blobs.upload(code.digest, Box::pin(chunks)).await.map(drop)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_familiar_name_is_the_last_part() {
        let cases = [
            ("trace", "trace"),
            ("docker.io/cvetkovic/dirigent_trace_function:latest", "dirigent_trace_function"),
            ("localhost:5000/a/b:1.2", "b"),
            ("a@sha256:0123", "a"),
            ("", ""),
            ("/", ""),
        ];
        for (image, name) in cases {
            assert_eq!(familiar(image), name, "{image}");
        }
    }
}
