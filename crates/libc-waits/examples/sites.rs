//! Lists sites.
use object::read::elf::{ElfFile64, ProgramHeader};
use tailwater_libc_waits::image::{Image, Segment};
use tailwater_libc_waits::sites;
fn main() {
    for path in std::env::args().skip(1) {
        let data = std::fs::read(&path).unwrap();
        let elf = ElfFile64::<object::LittleEndian>::parse(&*data).unwrap();
        let e = object::LittleEndian;
        let mut segs = vec![];
        let mut hdr = 0;
        for p in elf.elf_program_headers() {
            if p.p_type(e) == object::elf::PT_LOAD {
                segs.push(Segment { address: p.p_vaddr(e), bytes: p.data(e, &*data).unwrap(), executable: p.p_flags(e).0 & 1 != 0 });
            }
            if p.p_type(e) == object::elf::PT_GNU_EH_FRAME { hdr = p.p_vaddr(e); }
        }
        let t = std::time::Instant::now();
        let image = Image::new(segs, hdr).unwrap();
        let found = sites::find(&image);
        println!("{path}: {} functions, {} sites, {} others, {} unfit, {:?}", image.functions().len(), found.sites.len(), found.others, found.unfit.len(), t.elapsed());
        for s in &found.sites { if s.number != sites::Number::Futex || s.moved.len() > 1 { println!("  {:#x} in {:#x}+{:#x} {:?} {:?}", s.syscall, s.function.start, s.syscall - s.function.start, s.number, s.moved.iter().map(|i| format!("{:?}", i.code())).collect::<Vec<_>>()); } }
        for u in &found.unfit { println!("  UNFIT {u}"); }
    }
}
