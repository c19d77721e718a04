use super::*;
use quote::ToTokens;

fn expanded(item: TokenStream) -> String {
    preemptible(&TokenStream::new(), item).unwrap().to_string()
}

/// Returns the number of poll points in an expansion, whichever kind.
fn polls(text: &str) -> usize {
    ["entry ()", "edge ()", "back_edge"].iter().map(|kind| text.matches(kind).count()).sum()
}

#[test]
fn what_cannot_poll_is_refused_with_the_alternative() {
    let refusal = |item| preemptible(&TokenStream::new(), item).unwrap_err().to_string();
    assert!(refusal(quote! { const fn f() {} }).contains("callers"));
    assert!(refusal(quote! { struct S; }).contains("impl or a module"));
    assert!(refusal(quote! { mod elsewhere; }).contains("with a body"));
    assert!(preemptible(&quote!(every = 3), quote! { fn f() {} }).is_err());
}

#[test]
fn constants_types_and_macros_are_left_alone() {
    let untouched = [
        quote! { impl S { const N: usize = { let mut n = 0; while n < 9 { n += 1; } n }; } },
        quote! { impl S { const fn f() { while true {} } } },
        quote! { mod m { fn f() -> [u8; { let mut n = 0; while n < 9 { n += 1; } n }] { g!(while true {}) } } },
        quote! { mod m { fn f() { const N: usize = { loop { break 3; } }; } } },
    ];
    for item in untouched {
        assert_eq!(expanded(item.clone()), item.to_string());
    }
}

#[test]
fn one_function_of_each_circle_polls_at_its_entry() {
    let text = expanded(quote! {
        mod m {
            fn getter() -> u8 { 1 }
            fn even(n: u8) -> bool { n == 0 || odd(n - 1) }
            fn odd(n: u8) -> bool { n != 0 && even(n - 1) }
            fn outer() { even(9); }
        }
    });
    assert_eq!(polls(&text), 1, "{text}");
    assert_eq!(polls(&expanded(quote! { fn getter() -> u8 { 1 } })), 1, "asked for by name");
}

#[test]
fn a_circle_that_goes_on_in_a_loop_polls_there() {
    let parser = |members: TokenStream| {
        expanded(quote! {
            impl Parser {
                fn value(&mut self) { if self.peek() == 1 { self.members(); } }
                fn members(&mut self) { #members }
            }
        })
    };
    let text = parser(quote! { while self.peek() != 2 { self.value(); } });
    assert_eq!((polls(&text), text.matches("entry ()").count()), (1, 1), "{text}");
    assert!(
        text.contains(
            &quote!({
                ::tailwater::__preemptible::entry();
                self.value();
            })
            .to_string()
        ),
        "{text}"
    );
    for elsewhere in [
        quote! { self.value(); while self.peek() != 2 { self.value(); } },
        quote! { while self.value() {} },
        quote! { for x in v { f(|| self.value()); } },
    ] {
        let text = parser(elsewhere);
        assert_eq!(polls(&text), 2, "{text}");
    }
}

#[test]
fn each_closure_async_block_and_inner_function_has_its_own_count() {
    let text = expanded(quote! {
        fn f() {
            let a = || { while x() {} };
            let b = async { loop { y().await; } };
            fn inner() { while z() {} }
            while a() {}
        }
    });
    assert_eq!(text.matches("FULL").count(), 4, "{text}");
    assert_eq!(text.matches("back_edge").count(), 4, "{text}");
}

#[test]
fn short_literal_loops_have_no_poll_tight_ones_run_in_chunks_and_others_count() {
    let kind = |item: TokenStream| {
        let text = expanded(item);
        (text.contains("next_part"), text.contains("back_edge"))
    };
    assert_eq!(kind(quote! { fn f() { for i in 0..64 { s += a[i]; } } }), (false, false));
    assert_eq!(kind(quote! { fn f() { for i in 0..n { s += a[i]; } } }), (true, false));
    assert_eq!(kind(quote! { fn f() { for i in 0..64 { g(i); } } }), (false, true));
    assert_eq!(kind(quote! { fn f() { for i in 0..4 { g(i); } } }), (false, false));
    assert_eq!(kind(quote! { fn f() { for i in 0..100_000 { s += a[i]; } } }), (true, false));
}

#[test]
fn loops_that_call_functions_with_loops_poll_each_time() {
    let each_time = |item| expanded(item).matches("entry ()").count() - 1;
    assert_eq!(each_time(quote! { fn f() { while a() { while b() {} } } }), 0, "it counts");
    let several = quote! { fn f() { while a() { while b() {} while b() {} while b() {} while b() {} } } };
    assert_eq!(each_time(several), 1);
    assert_eq!(each_time(quote! { fn f() { while a() { g(); } fn g() { while b() {} } } }), 1);
    assert_eq!(each_time(quote! { fn f() { while a() { for i in 0..4 { s += 1; } } } }), 0);
    let text = expanded(quote! {
        mod m {
            fn line() { while b() {} }
            fn skip() { line(); }
            fn lines() { while a() { skip(); } }
        }
    });
    assert_eq!((text.matches("entry ()").count(), text.matches("back_edge").count()), (1, 1), "{text}");
}

#[test]
fn the_first_turn_of_a_tight_while_does_not_count_unless_it_may_continue() {
    let whiles = |item| expanded(item).matches("while").count();
    assert_eq!(whiles(quote! { fn f() { while i < n { i += 1; } } }), 2);
    assert_eq!(whiles(quote! { fn f() { while i < n { i += 1; if a[i] { continue; } } } }), 1);
    assert_eq!(whiles(quote! { fn f() { while i < n { g(i); } } }), 1);
    assert_eq!(whiles(quote! { fn f() { while i < n { static N: u8 = 0; } } }), 1, "one static");
    assert_eq!(whiles(quote! { fn f() { while i < n { m!(); } } }), 1, "what is in it?");
}

#[test]
fn the_iterated_expression_stands_where_its_temporaries_outlive_the_loop() {
    let text = expanded(quote! { fn f() { for x in m.lock().iter() { s += x; } } });
    // A `match` keeps the temporaries of what it matches, unless that is a block.
    assert!(text.contains(&quote!(match ::core::iter::IntoIterator::into_iter).to_string()), "{text}");
}

#[test]
fn weights_grow_with_calls_and_loops_and_are_bounded() {
    let looping = ["scan".to_owned()].into();
    let weights = Weights { looping: &looping };
    let of = |block: TokenStream| weights.of_block(&syn::parse2(block).unwrap());
    assert_eq!(
        of(quote!({
            s = s.wrapping_mul(3).rotate_left(5);
        })),
        1
    );
    assert_eq!(
        of(quote!({
            s = Some(a[i]);
        })),
        1
    );
    assert_eq!(
        of(quote!({
            f();
        })),
        17
    );
    assert_eq!(
        of(quote!({
            self.scan();
        })),
        1 + weight::LOOPING
    );
    assert_eq!(
        of(quote!({
            for i in 0..=9 {
                s += i;
            }
        })),
        11
    );
    assert_eq!(
        of(quote!({
            for i in 0..1_000_000 {
                f();
            }
        })),
        weight::FULL
    );
    assert_eq!(
        of(quote!({
            let f = || g();
        })),
        1,
        "a closure runs elsewhere"
    );
}

#[test]
fn an_expansion_keeps_labels_attributes_and_patterns() {
    let text = expanded(quote! {
        fn f() { #[allow(unused)] 'rows: for (i, &x) in v.iter().enumerate() { if x { break 'rows; } } }
    });
    for part in [quote!('rows : loop), quote!(#[allow(unused)]), quote!(Some((i, &x)))] {
        assert!(text.contains(&part.to_token_stream().to_string()), "{text}");
    }
}
