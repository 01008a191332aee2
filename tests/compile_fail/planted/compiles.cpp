// expect: anything
int a = 0;
