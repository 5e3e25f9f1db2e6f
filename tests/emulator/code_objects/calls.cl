// What the code objects here are made of:
//   clang-19 -x cl -cl-std=CL2.0 -target amdgcn-amd-amdhsa -mcpu=GPU -nogpulib -O1 calls.cl -o calls_GPU.co
//   llvm-strip-19 -g calls_GPU.co
//   llvm-objdump-19 -d calls_GPU.co | grep -v s_code_end > calls_GPU.txt
// A struct by value, a table, a private array, a call, LDS, a global variable, a pointer to LDS that the launch allocates.
struct Parameters {
  int bias;
  float scale;
  long offset;
};
constant int table[8] = {3, 1, 4, 1, 5, 9, 2, 6};
global int launches = 40;

__attribute__((noinline)) int pick(int x, private int *places) { return places[x & 7] * 3 + x; }

kernel __attribute__((reqd_work_group_size(64, 1, 1))) void calls(global int *out, struct Parameters p, global float *y,
                                                                  local int *shared) {
  int i = __builtin_amdgcn_workitem_id_x();
  local int fixed[64];
  int places[8];
  for (int j = 0; j < 8; j++) places[j] = table[j] + i * j;
  fixed[i] = pick(i, places);
  shared[63 - i] = i;
  __builtin_amdgcn_fence(__ATOMIC_RELEASE, "workgroup");
  __builtin_amdgcn_s_barrier();
  __builtin_amdgcn_fence(__ATOMIC_ACQUIRE, "workgroup");
  out[i] = fixed[63 - i] + 1000 * shared[i] + p.bias + launches;
  y[i] = y[i] * p.scale + p.offset;
}

kernel void count(void) { launches += 1; }
