//! The web page and the list of statistics that it explains itself by.
//!
//! Owns three files that are part of the program; the page loads nothing from elsewhere. It writes
//! names of programs as text only, never as HTML, and what it may load is limited by the
//! `Content-Security-Policy` of [`http`](crate::http).

use serde_json::{Value, json};
use tailwater_stats::schema::{PARTS, Unit};

use crate::http::Response;

/// Returns a file of the page; `None` for another path.
pub fn file(path: &str) -> Option<Response> {
    Some(match path {
        "/" => Response::ok("text/html; charset=utf-8", include_str!("page/page.html")),
        "/page.css" => Response::ok("text/css; charset=utf-8", include_str!("page/page.css")),
        "/page.js" => Response::ok("text/javascript; charset=utf-8", include_str!("page/page.js")),
        "/schema.json" => Response::ok("application/json", schema().to_string()),
        _ => return None,
    })
}

/// Returns the list of statistics: place, key, kind, unit, meaning and metric of each.
fn schema() -> Value {
    let mut all = Vec::new();
    for part in PARTS {
        for field in part.shape.fields() {
            let unit = match field.unit {
                Unit::Nanoseconds => "ns",
                Unit::Bytes => "bytes",
                Unit::Ratio => "ratio",
                Unit::Count => "",
            };
            all.push(
                json!({ "place": part.place(), "key": field.key, "kind": field.kind.name(), "unit": unit,
                "metric": part.metric_of(field), "help": field.help }),
            );
        }
    }
    all.into()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_page_is_small_and_complete_in_itself() {
        let files = ["/", "/page.css", "/page.js"].map(|path| file(path).unwrap().body);
        let bytes: usize = files.iter().map(String::len).sum();
        assert!(bytes < 60_000, "{bytes} bytes");
        for text in &files {
            let foreign = ["http://", "https://", "innerHTML", "eval(", "@import", "style=\"", "onclick="];
            let own = text.replace("http://www.w3.org/2000/svg", "");
            assert!(!foreign.iter().any(|word| own.contains(word)), "{text}");
        }
    }

    #[test]
    fn the_page_reads_what_the_statistics_have() {
        let script = file("/page.js").unwrap().body;
        let schema = schema();
        let listed = |name: &str| {
            schema.as_array().unwrap().iter().any(|field| {
                let (place, key) = (field["place"].as_str().unwrap(), field["key"].as_str().unwrap());
                if place.is_empty() { name == key } else { name == format!("{place}.{key}") }
            })
        };
        let uses = script.split("const USES = [").nth(1).and_then(|rest| rest.split("];").next()).unwrap();
        let names: Vec<&str> = uses
            .split(',')
            .map(|name| name.trim().trim_matches('"'))
            .filter(|name| !name.is_empty())
            .collect();
        assert!(names.len() > 20, "{names:?}");
        for name in names {
            assert!(listed(name), "the page uses `{name}`, which the list of statistics lacks");
        }
    }
}
