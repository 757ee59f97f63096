/* What the programs of these tests share. */
#ifndef CHECK_H
#define CHECK_H

#include <errno.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <uext4.h>

#define MUST(call)                                                                              \
    do {                                                                                        \
        long long result_ = (long long)(call);                                                  \
        if (result_ < 0) {                                                                      \
            fprintf(stderr, "%s:%d: %s: %lld: %s\n", __FILE__, __LINE__, #call, result_,        \
                    uext4_error_text());                                                        \
            exit(1);                                                                            \
        }                                                                                       \
    } while (0)

/* A call that fails with this errno, and with words that say why. */
#define FAILS(call, number, words)                                                              \
    do {                                                                                        \
        long long result_ = (long long)(call);                                                  \
        if (result_ != -(number) || strstr(uext4_error_text(), words) == NULL                   \
            || strchr(uext4_error_text(), '\n') != NULL) {                                      \
            fprintf(stderr, "%s:%d: %s: %lld: '%s', not %d: '%s'\n", __FILE__, __LINE__, #call, \
                    result_, uext4_error_text(), number, words);                                \
            exit(1);                                                                            \
        }                                                                                       \
    } while (0)

#define EXPECT(condition)                                                                       \
    do {                                                                                        \
        if (!(condition)) {                                                                     \
            fprintf(stderr, "%s:%d: not %s\n", __FILE__, __LINE__, #condition);                 \
            exit(1);                                                                            \
        }                                                                                       \
    } while (0)

#endif
