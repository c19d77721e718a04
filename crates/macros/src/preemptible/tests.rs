use super::*;
use quote::ToTokens;

fn expanded(item: TokenStream) -> String {
    preemptible(&TokenStream::new(), item).unwrap().to_string()
}

/// Returns the number of poll points in an expansion, whichever kind.
fn polls(text: &str) -> usize {
    text.matches(":: poll ()").count() + text.matches("back_edge").count()
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
fn functions_of_an_item_poll_at_their_entry_only_if_they_loop_or_recurse() {
    let text = expanded(quote! {
        mod m {
            fn getter() -> u8 { 1 }
            fn even(n: u8) -> bool { n == 0 || odd(n - 1) }
            fn odd(n: u8) -> bool { n != 0 && even(n - 1) }
            fn outer() { even(9); }
            fn dot(a: &[f32], b: &[f32]) { for (x, y) in a.iter().zip(b) { s += x * y; } }
        }
    });
    assert_eq!(polls(&text), 3, "two recurse, and one has a chunk's: {text}");
    assert_eq!(polls(&expanded(quote! { fn getter() -> u8 { 1 } })), 1, "asked for by name");
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
fn the_iterated_expression_stands_where_its_temporaries_outlive_the_loop() {
    let text = expanded(quote! { fn f() { for x in m.lock().iter() { s += x; } } });
    // A `match` keeps the temporaries of what it matches, unless that is a block.
    assert!(text.contains(&quote!(match ::tailwater::__preemptible::Loop).to_string()), "{text}");
}

#[test]
fn weights_grow_with_calls_and_loops_and_are_bounded() {
    let of = |block: TokenStream| weight::of_block(&syn::parse2(block).unwrap());
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
        33
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
