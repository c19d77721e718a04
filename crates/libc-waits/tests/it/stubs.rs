//! What is written, decoded again.

use iced_x86::{Code, Decoder, DecoderOptions, Instruction, Register};
use tailwater_libc_waits::image::Image;
use tailwater_libc_waits::image::Segment;
use tailwater_libc_waits::sites::{Number, Shape, Site};
use tailwater_libc_waits::stub::{jump, stub};
use tailwater_libc_waits::{flow, sites};

const LIBRARY: u64 = 0x7f00_0000_1000;

fn decode(bytes: &[u8], at: u64) -> Vec<Instruction> {
    Decoder::with_ip(64, bytes, at, DecoderOptions::NONE).into_iter().collect()
}

/// Returns the site of a `syscall` behind these instructions.
fn site(before: &[u8]) -> Site {
    let moved = decode(before, LIBRARY);
    let syscall = LIBRARY + before.len() as u64;
    Site { function: LIBRARY..syscall + 2, number: Number::Any, moved, syscall }
}

#[test]
fn a_stub_moves_the_instructions_and_jumps_back_to_other_calls() {
    // mov esi, [rip + 0x100]; a load that finds the same word from elsewhere.
    let site = site(&[0x8b, 0x35, 0x00, 0x01, 0x00, 0x00]);
    let at = LIBRARY + 0x10_0000;
    let code = decode(&stub(&site, at, 0x1234_5678).unwrap()[..35], at);
    assert_eq!(code[0].ip_rel_memory_address(), LIBRARY + 6 + 0x100);
    assert_eq!((code[1].code(), code[1].immediate(1)), (Code::Cmp_EAX_imm32, 202));
    assert_eq!((code[2].code(), code[2].near_branch_target()), (Code::Jne_rel32_64, site.syscall));
    assert_eq!((code[3].code(), code[3].memory_displacement32() as i32), (Code::Lea_r64_m, -128));
    assert_eq!(code[4].code(), Code::Push_rm64);
    assert_eq!(code[5].code(), Code::Jmp_rm64);
    let bytes = stub(&site, at, 0x1234_5678).unwrap();
    let word = |address: u64| {
        let offset = (address - at) as usize;
        u64::from_le_bytes(bytes[offset..offset + 8].try_into().unwrap())
    };
    assert_eq!(word(code[4].ip_rel_memory_address()), site.syscall + 2);
    assert_eq!(word(code[5].ip_rel_memory_address()), 0x1234_5678);
}

#[test]
fn a_jump_takes_the_place_of_the_moved_instructions_and_leaves_the_call() {
    // xor r10d, r10d; mov eax, edi; mov edx, ecx.
    let site = site(&[0x45, 0x31, 0xd2, 0x89, 0xf8, 0x89, 0xca]);
    let bytes = jump(&site, LIBRARY - 0x1000).unwrap();
    assert_eq!(bytes.len() as u64, site.syscall - site.start());
    let code = decode(&bytes, LIBRARY);
    assert_eq!((code[0].code(), code[0].near_branch_target()), (Code::Jmp_rel32_64, LIBRARY - 0x1000));
    assert!(code[1..].iter().all(|instruction| instruction.code() == Code::Nopd));
}

#[test]
fn what_is_out_of_reach_is_an_error() {
    let site = site(&[0xb8, 0xca, 0, 0, 0]);
    assert!(jump(&site, LIBRARY + (3 << 30)).is_err());
    assert!(stub(&site, LIBRARY + (3 << 30), 0).unwrap_err().to_string().contains("out of reach"));
}

/// Returns the value of `register` before the last instruction of a function.
fn value(bytes: &[u8], register: Register, targets: &[u64]) -> flow::Value {
    let code = flow::Code::decode(bytes, LIBRARY);
    code.value_before(code.instructions().len() - 1, register, |address| targets.contains(&address))
}

#[test]
fn a_number_is_followed_through_registers_and_branches() {
    let constants = |numbers: &[u64]| flow::Value::Constants(numbers.iter().copied().collect());
    // mov edx, 60; mov eax, edx; syscall
    assert_eq!(value(&[0xba, 60, 0, 0, 0, 0x89, 0xd0, 0x0f, 5], Register::RAX, &[]), constants(&[60]));
    // mov eax, 1; test edi, edi; je +5; mov eax, 202; syscall
    let branch = [0xb8, 1, 0, 0, 0, 0x85, 0xff, 0x74, 5, 0xb8, 202, 0, 0, 0, 0x0f, 5];
    let target = LIBRARY + 14;
    assert_eq!(value(&branch, Register::RAX, &[target]), constants(&[1, 202]));
    // test eax, eax; jne +2; syscall; as in `read`, whose number is 0.
    assert_eq!(value(&[0x85, 0xc0, 0x75, 2, 0x0f, 5], Register::RAX, &[]), constants(&[0]));
    // mov eax, esi; syscall: the second argument.
    assert_eq!(value(&[0x89, 0xf0, 0x0f, 5], Register::RAX, &[]), flow::Value::Argument(Register::RSI));
    // mov eax, 1; call; syscall: the call changes it.
    assert_eq!(
        value(&[0xb8, 1, 0, 0, 0, 0xe8, 0, 0, 0, 0, 0x0f, 5], Register::RAX, &[]),
        flow::Value::Unknown
    );
    // A branch from elsewhere leads behind the constant.
    let elsewhere = [LIBRARY + 5];
    assert_eq!(value(&[0xb8, 1, 0, 0, 0, 0x0f, 5], Register::RAX, &elsewhere), flow::Value::Unknown);
}

#[test]
fn a_library_without_a_table_of_functions_is_refused() {
    let segment = Segment { address: LIBRARY, bytes: &[0; 64], executable: true };
    let error = Image::new(vec![segment], LIBRARY).unwrap_err();
    assert!(error.to_string().contains(".eh_frame_hdr"), "{error}");
}

#[test]
fn a_call_without_room_for_a_jump_is_named() {
    assert_eq!(Shape::NoRoom.to_string(), "there is no room for a jump before it");
    let unfit = sites::Unfit { syscall: 0x1234, why: Shape::Target };
    assert_eq!(unfit.to_string(), "the system call at 0x1234: a branch leads to it");
}
