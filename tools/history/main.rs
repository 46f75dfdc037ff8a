mod judge;
mod operation;
fn main(){}
