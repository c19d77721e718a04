//! The firewall's fuzz target on random operations of the right shape, which random bytes seldom
//! are.

use proptest::prelude::*;

/// Returns an operation of the firewall's target.
fn operation() -> impl Strategy<Value = Vec<u8>> {
    let with = |controls: core::ops::RangeInclusive<u8>, n| {
        (controls, prop::collection::vec(any::<u8>(), n))
            .prop_map(|(control, rest)| [vec![control], rest].concat())
    };
    prop_oneof![
        2 => with(0..=63, 10),
        1 => with(64..=71, 1),
        6 => with(72..=239, 9),
        1 => (240u8..=255, prop::collection::vec(any::<u8>(), 0..100))
            .prop_map(|(control, rest)| [vec![control, rest.len() as u8], rest].concat()),
    ]
}

proptest! {
    #[test]
    fn compiled_rules_agree_with_a_naive_evaluator(operations in prop::collection::vec(operation(), 1..200)) {
        tailwater_fuzz::firewall(&operations.concat());
    }
}
