use std::collections::HashSet;

use super::PARTS;

#[test]
fn every_metric_has_one_name_one_help_and_labels_that_prometheus_takes() {
    let mut names = HashSet::new();
    for part in PARTS {
        for field in part.shape.metrics() {
            let name = field.metric(part);
            let is_plain = |c: char| c.is_ascii_lowercase() || c.is_ascii_digit() || c == '_';
            assert!(name.chars().all(is_plain) && !name.contains("__"), "{name}");
            assert!(field.help.ends_with('.') && !field.help.contains("anosecond"), "{name}: {}", field.help);
            let labels: HashSet<&str> = part.labels().into_iter().collect();
            assert_eq!(labels.len(), part.labels().len(), "{name} has a label twice");
            // Prometheus sets the first two itself, and renames those of a target.
            let is_taken = |label: &&str| {
                ["job", "instance", "le", "quantile"].contains(label) || label.starts_with("__")
            };
            assert!(!labels.iter().any(is_taken), "{name} has a label that Prometheus uses: {labels:?}");
            assert!(names.insert(name.clone()), "two metrics are called {name}");
        }
        for field in part.shape.fields() {
            assert!(field.help.ends_with('.'), "{}.{}: {}", part.place(), field.key, field.help);
        }
    }
}
