use proptest::prelude::*;

use super::super::listen::listening_inodes;

const TABLE: &str = "\
  sl  local_address rem_address   st tx_queue rx_queue tr tm->when retrnsmt   uid  timeout inode
   0: 00000000:26D6 00000000:0000 0A 00000000:00000000 00:00000000 00000000     0        0 4711 1
   1: 0100007F:26D6 0100007F:D431 01 00000000:00000000 00:00000000 00000000     0        0 4712 1
   2: 00000000:0016 00000000:0000 0A 00000000:00000000 00:00000000 00000000     0        0 4713 1
";

#[test]
fn only_listening_sockets_of_the_port_count() {
    assert_eq!(listening_inodes(TABLE, 9942), [4711]);
    assert_eq!(listening_inodes(TABLE, 22), [4713]);
    assert_eq!(listening_inodes(TABLE, 80), Vec::<u64>::new());
}

proptest! {
    #[test]
    fn a_cut_table_gives_no_more_than_the_whole_one(cut in 0..TABLE.len()) {
        let inodes = listening_inodes(&TABLE[..cut], 9942);
        prop_assert!(inodes.len() <= 1);
    }
}
