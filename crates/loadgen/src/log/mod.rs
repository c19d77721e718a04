//! Latencies over time as an HdrHistogram interval log: the text format, version 1.3, that
//! HistogramLogAnalyzer, HistogramLogProcessor and the libraries of several languages read.
//!
//! Owns the lines; `encode` is the histogram in a line. Values are nanoseconds; the largest value
//! of each line, which is for people, is in milliseconds. Times are seconds since `BaseTime`.

mod encode;

use std::io;
use std::time::{Duration, SystemTime, UNIX_EPOCH};

use tailwater_workload::Intervals;

/// Nanoseconds in the unit of the largest value of each line.
const MAX_VALUE_DIVISOR: f64 = 1e6;

/// The first line, by which readers know the version of the format.
const VERSION: &str = "[Histogram log format version 1.3]";

/// A part of a log: intervals that began at `start`, and their tag.
#[derive(Debug, Clone, Copy)]
pub struct Section<'a> {
    /// The tag of each line, without comma, blank or line end; such characters are replaced. None
    /// for untagged lines.
    pub tag: Option<&'a str>,
    /// Beginning of the first interval.
    pub start: SystemTime,
    /// The intervals.
    pub intervals: &'a Intervals,
}

/// Writes `sections` as one log. `comment` becomes its second line.
///
/// # Errors
/// If `out` refuses.
pub fn write_log(mut out: impl io::Write, comment: &str, sections: &[Section<'_>]) -> io::Result<()> {
    let base = sections.iter().map(|section| section.start).min().unwrap_or(UNIX_EPOCH);
    let base_s = base.duration_since(UNIX_EPOCH).unwrap_or_default().as_secs_f64();
    writeln!(out, "#{VERSION}\n#{comment}")?;
    writeln!(out, "#[StartTime: {base_s:.3} (seconds since epoch)]")?;
    writeln!(out, "#[BaseTime: {base_s:.3} (seconds since epoch)]")?;
    writeln!(out, "#[MaxValueDivisor: {MAX_VALUE_DIVISOR:.3}]")?;
    for section in sections {
        let offset = section.start.duration_since(base).unwrap_or_default();
        let tag = section.tag.map_or_else(String::new, |tag| format!("Tag={},", clean(tag)));
        let length = Duration::from_nanos(section.intervals.length_ns);
        for interval in &section.intervals.list {
            let start =
                offset + Duration::from_nanos(section.intervals.length_ns.saturating_mul(interval.index));
            let histogram = interval.histogram();
            writeln!(
                out,
                "{tag}{:.3},{:.3},{:.3},{}",
                start.as_secs_f64(),
                length.as_secs_f64(),
                histogram.max() as f64 / MAX_VALUE_DIVISOR,
                encode::encode(&histogram)
            )?;
        }
    }
    Ok(())
}

/// Replaces the characters of a tag that the format does not allow.
fn clean(tag: &str) -> String {
    tag.chars().map(|c| if c == ',' || c.is_whitespace() { '-' } else { c }).collect()
}

#[cfg(test)]
mod tests {
    use super::*;
    use hdrhistogram::serialization::Deserializer;
    use hdrhistogram::serialization::interval_log::{IntervalLogIterator, LogEntry};
    use tailwater_workload::summary::WINDOW_NS;
    use tailwater_workload::{LatencyRecorder, Summary};

    fn summary() -> Summary {
        let mut recorder = LatencyRecorder::with_intervals(0, 100_000_000);
        for i in 0..1000u64 {
            recorder.record(i * 1_000_000, 1_000 + i * 977);
        }
        recorder.finish(1_000_000_000)
    }

    #[test]
    fn a_written_log_is_read_by_the_librarys_own_reader() {
        let summary = summary();
        let start = SystemTime::UNIX_EPOCH + Duration::from_secs(1_700_000_000);
        let mut text = Vec::new();
        let sections = [
            Section { tag: None, start, intervals: summary.intervals() },
            Section {
                tag: Some("20k, again"),
                start: start + Duration::from_secs(5),
                intervals: &summary.intervals().coarsened(5 * WINDOW_NS),
            },
        ];
        write_log(&mut text, "a test", &sections).unwrap();
        assert!(text.starts_with(b"#[Histogram log format version 1.3]\n#a test\n"));
        let (mut times, mut sums) = (Vec::new(), [0; 2]);
        for entry in IntervalLogIterator::new(&text) {
            match entry.unwrap() {
                LogEntry::Interval(line) => {
                    let bytes = base64::engine::Engine::decode(
                        &base64::engine::general_purpose::STANDARD,
                        line.encoded_histogram(),
                    )
                    .unwrap();
                    let histogram = Deserializer::new().deserialize::<u64, _>(&mut bytes.as_slice()).unwrap();
                    let tagged = line.tag().map(|tag| tag.as_str() == "20k--again");
                    sums[usize::from(tagged.is_some_and(|right| right))] += histogram.len();
                    assert!((line.max() * 1e6 / histogram.max() as f64 - 1.0).abs() < 0.01);
                    times.push(line.start_timestamp().as_secs_f64());
                }
                LogEntry::StartTime(time) | LogEntry::BaseTime(time) => {
                    assert_eq!(time.as_secs(), 1_700_000_000);
                }
            }
        }
        assert_eq!(sums, [1000, 1000]);
        let expected: Vec<f64> = (0..10).map(|i| f64::from(i) / 10.0).chain([5.0, 5.5]).collect();
        assert!(times.iter().zip(&expected).all(|(a, b)| (a - b).abs() < 1e-6), "{times:?}");
        assert_eq!(times.len(), expected.len());
    }
}
