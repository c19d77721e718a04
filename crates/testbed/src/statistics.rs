//! What a reading of an IOKernel's statistics says of its cores and programs, and two readings
//! compared.
//!
//! Owns what is the same thing in both, and by how much a counter or a histogram grew. A program
//! that has ended and another one in its place are two things; a counter that is smaller than
//! before began anew.

use serde_json::Value;
use tailwater_stats::BOUNDS_NS;

/// What tells a program from all others.
pub const PROGRAM: &[&str] = &["id", "name", "pid"];
/// What tells a class of requests from all others of its program.
pub const CLASS: &[&str] = &["name", "dispatcher"];

/// Returns the cores that the IOKernel lends; `None` if the statistics, of another version, do not
/// have them.
pub fn lent_cores<T: TryFrom<u64>>(statistics: &Value) -> Option<Vec<T>> {
    let cores = statistics["iokernel"]["managed_cores"].as_array()?;
    Some(cores.iter().filter_map(|core| T::try_from(core.as_u64()?).ok()).collect())
}

/// Returns the networks from which the IOKernel gives addresses, as `ADDRESS/BITS`; `None` if the
/// statistics, of another version, do not have them.
pub fn networks(statistics: &Value) -> Option<Vec<String>> {
    let networks = statistics["iokernel"]["networks"].as_array()?;
    networks.iter().map(|network| network.as_str().map(str::to_owned)).collect()
}

/// Returns the number of a program's place; that of no place if it has none.
pub fn place_of(program: &Value) -> u32 {
    program["id"].as_u64().and_then(|id| u32::try_from(id).ok()).unwrap_or(u32::MAX)
}

/// Returns the element of the earlier list that is the same thing, by these keys; null if it is
/// new.
pub fn alike<'a>(earlier: &'a Value, element: &Value, keys: &[&str]) -> &'a Value {
    let is_same = |other: &&Value| keys.iter().all(|key| other[*key] == element[*key]);
    earlier.as_array().into_iter().flatten().find(is_same).unwrap_or(&Value::Null)
}

/// Returns by how much a number grew.
pub fn growth(from: &Value, to: &Value) -> f64 {
    let (from, to) = [from, to].map(|value| value.as_f64().unwrap_or_default()).into();
    if to >= from { to - from } else { to }
}

/// Returns the bound of the bucket in which a part of the values between two readings of a
/// histogram lies, in nanoseconds: infinite above the last; `None` without values.
pub fn quantile_ns(from: &Value, to: &Value, part: f64) -> Option<f64> {
    let all = growth(&from["count"], &to["count"]);
    let buckets = to["buckets"].as_array().filter(|_| all >= 1.0)?;
    let reached = |at: &usize| growth(&from["buckets"][*at], &buckets[*at]) >= part * all;
    let at = (0..buckets.len()).find(reached);
    Some(at.and_then(|at| BOUNDS_NS.get(at)).map_or(f64::INFINITY, |ns| *ns as f64))
}

#[cfg(test)]
mod tests {
    use super::*;
    use serde_json::json;

    #[test]
    fn a_successor_in_the_same_place_is_another_program_and_a_smaller_counter_began_anew() {
        let earlier = json!([{ "id": 1, "name": "web", "pid": 7 }]);
        let with = |pid: u64| json!({ "id": 1, "name": "web", "pid": pid, "rx": 5 });
        assert_eq!(alike(&earlier, &with(7), PROGRAM), &earlier[0]);
        assert_eq!(alike(&earlier, &with(8), PROGRAM), &Value::Null);
        assert_eq!(alike(&Value::Null, &with(7), PROGRAM), &Value::Null);
        assert_eq!([growth(&json!(3), &json!(5)), growth(&json!(5), &json!(3))], [2.0, 3.0]);
        assert_eq!(growth(&Value::Null, &json!(4)), 4.0);
    }

    #[test]
    fn a_quantile_is_of_the_values_between_two_readings() {
        let buckets = |low: u64, high: u64| {
            let counts: Vec<u64> = (0..BOUNDS_NS.len()).map(|at| if at < 4 { low } else { high }).collect();
            json!({ "count": high, "buckets": counts })
        };
        // 90 values before, all short; then 98 short ones and 2 of up to 5 us.
        let (from, to) = (buckets(90, 90), buckets(188, 190));
        assert_eq!(quantile_ns(&from, &to, 0.5), Some(200.0));
        assert_eq!(quantile_ns(&from, &to, 0.99), Some(5_000.0));
        assert_eq!(quantile_ns(&to, &to, 0.5), None);
        assert_eq!(quantile_ns(&from, &json!({ "count": 91, "buckets": [0] }), 0.5), Some(f64::INFINITY));
    }
}
