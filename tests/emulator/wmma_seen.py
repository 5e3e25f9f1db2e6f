"""What WMMA gave on a Radeon Pro W7900 (gfx1100) and a Radeon AI Pro R9700 (gfx1201): rocjitsu's hardware records."""

import numpy as np


def words(text, kind=np.uint16):
    """Hexadecimal numbers."""
    return np.array([int(x, 16) for x in text.split()], kind)


#: gfx1100, FP32 sums of whole numbers: D [16, 16], the same of fp16 and bf16 and in both wave sizes.
WHOLE_NUMBERS = words(
    """
    bfffffc0 c277fffe c1a00002 c2c20000 c217ffff 42f60000 c2f80000 42580000 42340000 c2a60000 42aa0000 c2bc0000
    c2ce0000 41bffffd c2100000 42940001 41efffff 42a20000 42800001 42c40000 c3160000 c23fffff 42d20000 c3380000
    42140001 419fffff c3160000 433e0000 403ffff8 c2400000 c0dffffc c2960000 41900004 c0dffffa 4197fffe c1b7fffe
    428e0000 c2920000 40800008 43590000 c3620000 c1effffe 414ffff9 c3360000 43050000 40bffffc c28c0000 42960000
    42040000 42ee0000 c22bffff 41cfffff c267ffff 41e00000 c2920001 c217ffff 43270000 c2d00000 42480000 42aa0000
    c3440000 429a0001 c2680000 c2b5ffff 40800000 415ffffe 41c00000 4187ffff 43120000 c1600006 c1f80000 c2900000
    c2e20000 42ec0000 c2ba0000 c16fffff 42380000 c2380000 43170000 42280000 c2fe0000 c0bffffc c25bffff 42440000
    36400000 428c0000 407ffff8 42940000 c1d00006 41d7ffff 42ae0001 c3370000 c12ffff6 40fffffc c30f0000 43140000
    40dffffc c2480000 43030000 42640000 c11ffffb 3f800018 42380000 c2780000 42880000 c2640000 c2380000 434b0000
    c2b80001 42180000 c13fffff c33c0000 42c20000 c20fffff c2ca0001 42180001 41c00000 429c0000 423c0001 43180000
    c2ba0000 c09ffffc c28bffff c2860000 430c0000 c2be0000 41d7ffff 427fffff c2960000 427c0000 c2740000 c2c80000
    c03ffff8 c0fffff6 42900000 bf7fffe0 42e20000 41b80000 428a0000 c2e80000 c2ae0000 429c0001 c3140000 b6000000
    c0000000 c2c80000 42d80000 c0dffffc 415ffffa c29a0000 c2920000 42860000 c2820000 42680004 41dfffff 41700001
    c2000000 42640000 43230000 c3370000 c1f7ffff c18fffff c31e0000 42fe0000 c1f00000 c24c0000 42800000 41d00000
    42f80000 c2700000 41a80003 c24bffff 41500006 c297fffe c1e80002 431a0000 c2a80000 421fffff 43020000 c3350000
    42780000 c18fffff c2a1ffff c1000008 41f80003 42ae0000 c1200001 43140000 42080000 c2920000 c2aa0000 c2a00000
    42d80000 c3050000 b6000000 41f80002 c2b60000 43210000 41b00001 c2dbffff c1e00002 c2400000 42880002 c1a00002
    429e0001 41c7ffff 42600000 c16ffff4 42180000 42880000 c3130000 c0a00004 c17ffffb c2e00000 43150000 c2000000
    c1100006 42a40000 41a00003 42040001 c2380001 4130000a c187fffe 41b7fffe c297ffff 40dffff8 42f80000 c2c60000
    42ce0000 c29e0000 c3370000 430a0000 c2aa0000 c28bffff 42a20000 c1b7fffe 42de0000 42b80000 42d60000 c2680000
    c03ffff8 c2c40000 c21fffff 43090000 c3000000 42440000 42600000 c2b40000 434e0000 c2ac0000 c2e20000 414ffffe
    c1f7fffe 42740003 41880000 42b80000
    """, np.uint32,
).reshape(16, 16)  # fmt: skip

#: gfx1201, FP32 sums: the type; 16 factors of A, 16 of B; C, D in waves of 32 and of 64 lanes.
ROWS = [
    ("f16", """bd53 36b8 2ae6 b1d2 c7a4 52af d233 4594 2905 47cd b74f 56cc 35d2 3da7 ac54 ab6a
               c142 4be3 d466 4f40 af92 c2ba 5479 414f 3144 a72e c63b 337d 4661 26c6 5512 b324""",
     "3f4725a9 c56665fb c56665fb"),
    ("f16", """cde1 c31a c66b 3710 a4a1 c2a9 d316 4cd3 35a2 456e bce5 2641 2894 33a0 b47a 46be
               3418 4131 ae4d c800 3dbf cb88 d634 2497 b526 c713 3efa 2f4d cd4e 4276 388a bfcf""",
     "3d062256 45af2530 45af2530"),
    ("f16", """c6e1 b1ea d31d 2d4f 4a45 d1f1 3362 c244 4a75 443e 5623 4ec3 57c7 b82e cf34 3660
               d36c c886 2f3d 30a3 d070 b2cb 4759 cf27 4ed4 3c97 ae37 b63f 35f0 3a25 b0d8 405a""",
     "bf6ba3b9 43dfc44b 43dfc44a"),
    ("f16", """3d07 a824 3e83 b297 d282 c8a0 387d b135 4e18 5517 c60f bd69 3fde 4493 4bd5 bfae
               b147 a6e2 2478 2d63 a614 b282 c643 2f06 32be 5272 403a c857 ba5d aae6 a872 c700""",
     "3f728cd7 4583b4ed 4583b4ed"),
    ("f16", """9844 3f7a 606f c18c be5b 891f bbfb 93b8 c3c6 32f2 f44e 15cf 5eeb 2b55 8bef a075
               8e88 ec18 d3c2 f6ae 0cdb 87c5 4587 5825 6e7d 8ab5 8773 4108 91c2 3987 62ab fbad""",
     "48e26837 48e6175e 48e6175f"),
    ("f16", """9e9c 73d6 c753 4a0b 91c0 8d79 6015 9da4 fc97 b3dd e0e5 4833 9999 dadf bcc6 0ecc
               5297 6ed8 6bfc 6533 ebf5 2249 a05f bc25 3335 b17c 769e f4c9 7f36 816a fcf7 e52a""",
     "3bc81ef9 ffc00a3d ffc00a3d"),
    ("bf16", """bfaa 3ed7 3d5c be3a c0f4 4255 c246 40b2 3d20 40f9 bee9 42d9 3eba 3fb4 bd8a bd6d
                c028 417c c28c 41e8 bdf2 c057 428f 4029 3e28 bce5 c0c7 3e6f 40cc 3cd8 42a2 be64""",
     "3f4725a9 c565bd89 c565bd8a"),
    ("bf16", """c1bc c063 c0cd 3ee2 bc94 c055 c262 419a 3eb4 40ad bf9c 3cc8 3d12 3e74 be8f 40d7
                3e83 4026 bdc9 c100 3fb7 c171 c2c6 3c92 bea4 c0e2 3fdf 3de9 c1a9 404e 3f11 bff9""",
     "3d062256 45ae21e3 45ae21e3"),
    ("bf16", """c0dc be3d c263 3da9 4148 c23e 3e6c c048 414e 4087 42c4 41d8 42f8 bf05 c1e6 3ecc
                c26d c110 3de7 3e14 c20e be59 40eb c1e4 41da 3f92 bdc6 bec7 3ebe 3f44 be1b 400b""",
     "bf6ba3b9 43dea4e6 43dea4e7"),
    ("bf16", """3fa0 bd04 3fd0 be52 c250 c114 3f0f be26 41c3 42a2 c0c1 bfad 3ffb 4092 417a bff5
                be28 bcdc 3c8f 3dac bcc2 be50 c0c8 3de0 3e57 424e 4007 c10a bf4b bd5c bd0e c0e0""",
     "3f728cd7 4582d7b9 4582d7b9"),
    ("bf16", """9e9c 73d6 c753 4a0b 91c0 8d79 6015 9da4 fc97 b3dd e0e5 4833 9999 dadf bcc6 0ecc
                5297 6ed8 6bfc 6533 ebf5 2249 a05f bc25 3335 b17c 769e f4c9 7f36 816a fcf7 e52a""",
     "3bc81ef9 7f800000 7f800000"),
    ("bf16", """9844 3f7a 606f c18c be5b 891f bbfb 93b8 c3c6 32f2 f44e 15cf 5eeb 2b55 8bef a075
                8e88 ec18 d3c2 f6ae 0cdb 87c5 4587 5825 6e7d 8ab5 8773 4108 91c2 3987 62ab fbad""",
     "48e26837 78bd8ea7 78bd8ea7"),
]  # fmt: skip

#: fp16 sums of fp16: four rows of A, B [k, column], four rows of C and of D.
PACKED_A = words("""
    380b cc95 ca7c bea9 2c0b 3367 b997 aa37 2f82 5015 caf3 4edc aff1 2e10 2600 c520
    bf04 d384 a9f3 4e6a 4344 48cf 4661 54e7 539e 3691 2647 c269 b02f be4b d280 bb3a
    2b6e 3305 c2fd cb97 311f b6d8 37ed 42e1 a8ef 3437 b094 b1f9 ca5f 4b36 3499 3c70
    4baf c3e1 c260 278a 4a3e c11a 57fd 46b1 c292 4657 bed8 57f6 c592 b102 4350 c211
""").reshape(4, 16)
PACKED_B = words("""
    49f0 a8f6 5787 be2e c2cc d60a 3bfd cc06 482c ceaa caa9 ce8d 2516 357b bea7 c06c
    28e1 2776 aca9 4fe1 c8ce b7db bb26 3c2b c2fe 4400 36c8 577b c5e7 ba9b 4639 c054
    2ca3 c7f6 b60b cc42 4ff3 c8d0 b02a b249 3e15 c030 566e 4ca9 d4ce 2b75 44a9 26fa
    2d50 a6d4 b8e6 30fe 30ce b8a3 a498 2a5f 2ea9 cd9d 37a0 3092 44ef ab1a 48c4 43e4
    c7f0 c981 c7ca ccf0 4049 d7c1 c3db 35ba 32a9 3c48 3cb1 ccf5 4915 c84f b3b1 c7dc
    34ca 27ae d38a 2b01 5217 4eef b45c a87d af91 38da 3401 3896 56ea ab9a 2c0d 5565
    2b3f 4b3f 29da 2c4f 4ea0 2447 b9e4 a5ae 3102 b916 2dfa 4827 ada0 4614 a960 c868
    b7b6 d580 c4af c780 37d7 cbc8 483f d123 2c86 cc09 4ae5 abeb bb9a d5eb 4c05 2d51
    d278 c628 bb62 d79b 333a 5190 d422 3cba 5237 aac9 bc93 490b cbdf b650 d3cf bfdc
    2717 d1ed b8ee ca8e 4b34 bd22 2e24 4eaa 39ff 26d1 2c0c 2c06 cbc4 b806 a59f 3425
    3471 363e ade9 4739 32e9 4034 3f2d b2b1 b851 d12a cb3e cae8 ca91 31a3 a471 c6d9
    bc5d 2766 4c99 26d4 cc9e c7a5 b23f 53c0 cef0 a540 a511 271f 3179 4198 5313 c871
    3eab 257f 4526 3a02 ad85 b6c6 bc96 33de 4d7f c1ec 2aea b62f d44d cdcf cb3d 3760
    4a40 3b3e 4e40 cf12 c29b ba70 b855 b511 c66f 26b6 b3c6 cdd6 bb7a 2bd6 2c60 d405
    5702 b4e7 3a50 5100 251a ac75 cbd4 2c60 b1aa b800 282b ced1 2b3e 2d01 cf26 a9f9
    d53e c5af 33af 4150 c57c 5686 5592 d7a5 4c23 b0c9 35e6 c6b7 2af8 371a b57a d15a
""").reshape(16, 16)
PACKED_C = words("""
    39a9 2334 bb50 3b78 3313 ba6b 99d0 38fb b0eb bb59 349c b331 3335 a732 bab9 36cd
    bafd b944 389b 30c6 1c06 b5e1 b83e 3b69 b2c6 3afc 2f0a 3424 b892 30cf b552 2dc5
    b325 3b40 a971 b882 ba0b 2e86 b93b 336c ba59 3ae1 3b63 3ad9 bafa 2db5 b9cc 32fd
    3885 361d a6bf bb0d bb10 385c 353e 2c7d 3ad6 b6fe bb74 b4e2 369e 3523 3ad1 b846
""").reshape(4, 16)
PACKED_D = {
    ("gfx1151", 32): """
        5e3c e595 6036 e327 dc02 e1ac df66 6a35 e1f8 6055 e47d e85b 6252 548e 654b 5815
        f066 ef0f e572 f1dc 654d 6592 e913 ea60 6a7e e7d8 63fc ecf8 604e ef3b e557 640f
        5605 dc49 5cf8 ddc1 d93c 5386 581e dc87 dd9b 5d41 dd03 de0a 63d8 cea3 53ed e439
        6205 62f2 6c19 53ec 6345 ec82 da2a 6fba eb3b e004 de1e da49 5f75 601e 6f40 e8c6
    """,
    ("gfx1201", 32): """
        5e3c e595 6037 e327 dc03 e1ac df66 6a35 e1f7 6054 e47d e85a 6253 548e 654b 5815
        f066 ef0f e572 f1dc 654e 6592 e914 ea5f 6a7e e7d7 63fd ecf9 604e ef3b e557 640e
        5605 dc48 5cf8 ddc1 d93c 5386 581e dc87 dd9b 5d40 dd02 de0b 63d9 cea3 53f1 e439
        6205 62f3 6c18 53ec 6349 ec83 da2a 6fb9 eb3b e003 de1e da48 5f75 601e 6f40 e8c6
    """,
    ("gfx1201", 64): """
        5e3c e594 6036 e327 dc03 e1ac df66 6a35 e1f7 6054 e47d e85a 6252 548e 654b 5815
        f066 ef0f e571 f1dd 654e 6593 e914 ea5f 6a7f e7d7 63fd ecf9 604e ef3b e557 640e
        5605 dc48 5cf8 ddc1 d93c 5386 581e dc87 dd9b 5d40 dd02 de0b 63d9 ceb3 53ef e439
        6205 62f3 6c18 53ec 6347 ec83 da29 6fb9 eb3b e003 de1e da49 5f75 601e 6f40 e8c6
    """,
}
PACKED_D["gfx1151", 64] = PACKED_D["gfx1151", 32]

#: The same operands cut to bf16, bf16 sums: D from the second row on.
PACKED_BF16_D = {
    ("gfx1151", 32): """
        c60c c5df c4ab c638 44a4 44b0 c51f c547 454c c4f6 447a c59a 4404 c5e3 c4a6 447f
        42bf c388 439e c3b6 c324 4270 4302 c38f c3b0 43a2 c39b c3bf 4478 c1d8 427d c485
        443f 4459 4580 4288 4468 c58c c345 45f5 c566 c3f9 c3bf c342 43eb 4402 45e5 c516
    """,
    ("gfx1201", 32): """
        c60c c5e0 c4ac c639 44a7 44af c521 c54a 454d c4f8 447c c59c 4407 c5e5 c4a8 4480
        42c0 c388 439e c3b7 c325 426e 4303 c390 c3b1 43a4 c39d c3bf 4478 c1d9 427e c486
        4440 445b 4581 4280 446d c58e c345 45f5 c565 c3fc c3c1 c349 43ea 4402 45e6 c517
    """,
}
