//! What is mapped lies while more memory is free than anybody needs: nothing else may need it then.

use std::fs;

use super::{damon, enabled};
use crate::evict::{Bench, Reader, cached, until};

#[test]
fn mapped_pages_stay_cached_until_they_are_unmapped_while_memory_is_free() {
    if !enabled() {
        return;
    }
    // What it has hold of for a moment cannot be evicted then.
    let _goes_on_at_the_end = damon::pause();
    fs::write("/proc/sys/vm/drop_caches", "1").unwrap();
    let Some(mut bench) = Bench::new() else { return };
    bench.floor_bytes = 0;
    let model = bench.file("model.safetensors", 256);
    let mut engine = Reader::start();
    engine.maps(&model);
    engine.does("touch 0 192");
    let said = bench.evict(vec![engine.id()]).unwrap();
    assert!(said.starts_with("0 B evicted; goes on"), "{said}");
    assert!(said.contains("; 128.0 MiB that is mapped stays until memory is short"), "{said}");
    engine.does("unmap");
    // Should some of it seem to have come back, the distance is wider.
    until("most of what was unmapped", || cached(&model, 0, 128) < 32);
    bench.ready();
}
