//! The measurements of one command, complete or not.

use super::document::Document;

/// The measurements, and the error that ended them early.
#[derive(Debug)]
pub struct Measured {
    /// The measurements.
    pub document: Document,
    /// The error that ended them early, which is among the document's warnings.
    pub ended: Option<anyhow::Error>,
}

impl Measured {
    /// Returns a complete document.
    pub fn whole(document: Document) -> Self {
        Self { document, ended: None }
    }

    /// Returns a document that ended with `error` at the load `name`.
    pub fn until(mut document: Document, name: &str, error: anyhow::Error) -> Self {
        document.warnings.push(format!("ended at {name}: {error:#}"));
        Self { document, ended: Some(error) }
    }
}
